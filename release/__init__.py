"""How dlemu gets onto other machines: installs that resolve, pins, fresh machines, a release.

Each is a command, `python -m release.NAME`, and a target of the Makefile. None is part of dlemu.
`fetch` needs nothing but Python and pip, for it comes before everything else.
"""
