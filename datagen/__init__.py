"""Datasets: their bytes, how they are written, the manifest, and their verification."""
