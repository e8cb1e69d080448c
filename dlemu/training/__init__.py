"""dlemu in a training loop of one's own: `make_loader` reads, `Meter` measures.

May import loaders, results and what is below them, but not run.
"""
