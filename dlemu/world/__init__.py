"""The ranks of a job: who they are, how they meet, and how they and their process end.

Knows nothing of training. May import the ground only.
"""
