"""Sharding rules: notation, the table of operators, and the families that build rules by shape."""
