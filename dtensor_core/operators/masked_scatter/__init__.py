"""Writes of successive elements where a mask is true."""
