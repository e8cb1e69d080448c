"""How many accelerators does a storage feed? By measurement (`dlemu size`), and by arithmetic.

May import run and what is below it.
"""
