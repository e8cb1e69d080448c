"""Objects in a bucket of an S3 server: requests with bounded retries, and what they came to.

Only `store` knows the library, obstore, which is imported on demand. It is not
fork-safe, so workers are threads, and each process makes its own stores. `objects` reads files by
such requests.
"""
