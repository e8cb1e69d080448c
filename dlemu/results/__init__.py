"""The files of a run and their meaning: records, summary, metrics, judgement, limit, text.

Nothing here runs a workload: all can be computed again from a run's folder.
"""
