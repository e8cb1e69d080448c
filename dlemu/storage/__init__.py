"""Bytes from files to memory: buffered and direct reads, the page cache, the probe of a drive.

Knows nothing of formats.
"""
