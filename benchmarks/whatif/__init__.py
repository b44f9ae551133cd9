"""Check of `commtrace whatif`: programs with a known cost, and the same programs without it."""
