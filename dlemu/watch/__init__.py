"""Measures an unchanged training job: its loaders, what they read, and a workload of it."""
