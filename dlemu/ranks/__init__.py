"""The ranks of a job: who they are, how they meet, what ends one that is stuck, and how they end.

Knows nothing of training.
"""
