"""Reads and writes by an index along one dimension."""
