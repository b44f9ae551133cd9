"""Joining of the recordings of all ranks into a trace, and its splitting into them again.

`collection` finds and reads the parts of a run, `plan` decides what needs all ranks, and `merge`
converts each recording by that plan.
"""
