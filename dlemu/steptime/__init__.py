"""The time of a real training step on this host's GPU (`dlemu steptime`).

May import results and what is below it: it reads no dataset and runs no loader.
"""
