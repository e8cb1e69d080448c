"""Model load: the seconds until an inference server has read a model's files (`dlemu load`).

May import gpu, paths, workload and what is below them; it stores nothing.
"""
