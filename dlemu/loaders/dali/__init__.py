"""The loader of NVIDIA DALI, with and without GPUDirect Storage. Imported on demand."""
