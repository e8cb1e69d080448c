"""A cache between a slow origin and training: what it hits, its folder, and how workers read by it.

May import the dataset, the formats, storage, the workload and what the host tells.
"""
