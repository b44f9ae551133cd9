"""Rolls, flips, rotations and repetitions of rows."""
