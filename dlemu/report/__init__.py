"""Documents to what a person reads: one `present` a kind of result, and a renderer a medium.

A command measures and returns a document. Here it becomes blocks, and these become the terminal's
text, a page, or a picture. A stored document goes the same way, so both say the same. Results are
read again here, compared, and written as a trace or a table. Nothing here runs a workload.
"""
