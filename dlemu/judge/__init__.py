"""The files of a run and their meaning: records, sums, metrics, losses, limit, judgement, summary.

Nothing here runs a workload: all can be computed again from a run's folder.
"""
