"""How long things take: `make bench`, or `python -m benchmarks [CASE ...]`."""
