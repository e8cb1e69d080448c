"""What the kernel tells of a host: devices, mounts, limits, processes, counters over time."""
