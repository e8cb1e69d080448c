"""Which file holds a sample, which samples an epoch reads, how many files a job needs.

Pure arithmetic, but for the hosts' memory. May import workload, world and host.
"""
