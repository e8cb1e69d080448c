"""dlemu inside one's own training loop: `make_loader` and `Meter`."""
