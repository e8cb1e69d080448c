"""The ranks of a job: who they are, how they meet, and how they end together.

Knows nothing of training. May import the ground only.
"""
