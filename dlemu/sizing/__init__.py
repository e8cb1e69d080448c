"""How many accelerators does a storage feed? Measured (`size`) and computed (`predict`)."""
