"""Copies, conversions and fills."""
