"""Sliding windows of dimensions and image patches."""
