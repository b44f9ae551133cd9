"""Sums, means and maxima of embeddings by bag."""
