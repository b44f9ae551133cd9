"""Dispatch of an operator call, from arguments to results, through a cache of decisions.

The modules here are the way of every call: `dispatcher` looks it up in the `cache`, `make_entry`
makes the `entry` of a new one from its `arguments` and the `metadata` of its results,
`redistribute_arguments` moves what has to move, and `results` wraps. `special` has what some
operators and arguments need besides.
"""
