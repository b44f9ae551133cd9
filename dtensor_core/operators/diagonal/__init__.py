"""Diagonals and triangles of matrices."""
