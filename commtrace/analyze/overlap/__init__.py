"""Communication behind other work.

overlap           exposed and overlapped communication of each rank and step
overlap_lost      communication that was not hidden, and why
"""
