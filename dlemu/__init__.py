"""How many GPUs will this storage feed? Emulates deep-learning training I/O and says why."""
