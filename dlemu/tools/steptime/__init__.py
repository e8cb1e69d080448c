"""The time of a real training step on this host's GPU (`dlemu steptime`).

May import results and host and what is below them: it reads no dataset and runs no loader.
"""
