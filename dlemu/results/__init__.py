"""What a run left, and what it means: records, metrics, the verdict and its reasons, reports.

Runs nothing: everything here can be computed again from a run's folder. May import host, storage
and workload.
"""
