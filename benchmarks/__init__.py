"""Timing benchmarks: `make bench`, or `python -m benchmarks [CASE ...]`."""
