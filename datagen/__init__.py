"""Datasets: their bytes, how they are written, the manifest, how they are verified and found."""
