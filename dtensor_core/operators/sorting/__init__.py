"""Sorting, top-k, arg-extremes and searches."""
