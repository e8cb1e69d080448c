"""Measured commands beside the job: data paths, the load of a model, step times of a real GPU."""
