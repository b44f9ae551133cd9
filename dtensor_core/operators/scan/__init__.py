"""Cumulative sums, products and extremes."""
