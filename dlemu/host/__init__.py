"""What the kernel knows of a host: devices, mounts, limits, processes, counters over time."""
