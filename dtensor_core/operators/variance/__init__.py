"""Variances and standard deviations."""
