"""What a reader makes of stored results: read again, compared, as a page, a trace or a table.

Results of dlemu, of its sizings, and of DLIO and mlpstorage. Nothing here runs a workload.
"""
