"""Amount and place of communication: tables of calls by kind, place, step and size.

by_*              a row for each kind, operator, phase, module, place, rank or step
calls             single calls
sizes             histogram of message sizes
bandwidth         bandwidth by kind, group, size and algorithm
matrix            bytes from each rank to every other
"""
