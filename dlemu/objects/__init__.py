"""Objects in a bucket of an S3 server: requests with bounded retries, and reading by them.

May import storage and workload. Only `store` knows the library, obstore, which is imported on
demand. It is not fork-safe, so workers are threads, and each process makes its own stores.
"""
