"""How many accelerators does a storage feed? By measurement (`size`) and by arithmetic (`predict`).

May import run and what is below it.
"""
