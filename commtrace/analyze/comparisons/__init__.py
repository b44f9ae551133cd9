"""Several runs, compared with each other.

diff              changes between two runs
growth            growth across several runs
compared          values of tensors of two runs
"""
