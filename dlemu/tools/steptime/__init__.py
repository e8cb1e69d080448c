"""The time of a real training step on this host's GPU (`dlemu steptime`).

It reads no dataset and runs no loader.
"""
