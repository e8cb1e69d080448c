"""A cache between a slow origin and training: what it hits, its folder, how workers read by it."""
