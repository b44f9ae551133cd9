"""Redistribution between layouts: the transition table, its cost, the planner and the executor."""
