"""Checkpoints: which accelerator holds how many bytes, and how they are written and read.

`dlemu checkpoint` writes and reads the checkpoints of a model; a run may write them while it reads.
"""
