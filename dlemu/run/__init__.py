"""One run, and several runs in a row: replay, the cold start, the closed division."""
