"""NVIDIA's libraries: CUDA, cuFile, GPUDirect Storage. Imported on demand only."""
