"""Side by side with fio, DLIO and the limit; each is a command: python -m benchmarks.NAME."""
