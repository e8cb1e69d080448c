"""Which file holds a sample, which samples are read when, and how many files a job needs.

Opens no file; only the rule asks the hosts for their memory.
"""
