"""Reads and writes by an index along a dimension."""
