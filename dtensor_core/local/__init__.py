"""Operators as ranks run them on local tensors, and their replacements on shards."""
