"""What a job asks for: the keys, their bounds, and the published workloads."""
