"""From one layout to another: the transition table, its cost, the planner and the executor."""
