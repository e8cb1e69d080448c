"""The Hydra config tree: workloads and drives, each number with its source; no code."""
