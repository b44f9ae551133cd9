"""Slices, splits and joins."""
