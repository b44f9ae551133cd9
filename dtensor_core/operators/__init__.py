"""Operator families: a folder for each, with its sharding `rule` and its `local` kernels, if any.

Two folders are no families: `rules` has what sharding rules are made of, and `kernels` what local
kernels share. `table` gathers the rows of all families.
"""
