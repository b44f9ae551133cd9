"""Operator families: each module has `ROWS`, the part of the table that it defines."""
