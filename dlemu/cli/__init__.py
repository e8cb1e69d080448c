"""Words in, lines out: the command line. Only this folder knows Hydra's and rich's words."""
