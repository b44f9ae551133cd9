"""Affine grids, and samples of images at grids."""
