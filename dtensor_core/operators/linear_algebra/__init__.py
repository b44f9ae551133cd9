"""Linear algebra on batches of matrices."""
