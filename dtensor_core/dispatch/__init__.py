"""Dispatch of an operator call, from arguments to results, through a cache of decisions."""
