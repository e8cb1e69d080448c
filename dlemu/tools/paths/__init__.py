"""Data paths side by side: host memory, bounce buffers, GPUDirect Storage (`dlemu paths`)."""
