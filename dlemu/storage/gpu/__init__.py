"""NVIDIA's libraries: CUDA, cuFile, GPUDirect Storage. Imported on demand only.

May import the ground, host and storage.
"""
