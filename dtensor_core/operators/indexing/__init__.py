"""Reads and writes at index tensors."""
