"""Distances between points."""
