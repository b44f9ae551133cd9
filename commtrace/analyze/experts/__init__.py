"""Mixtures of experts: the all-to-alls that carry their rows, and the load of experts.

exchanges         all-to-alls with splits: rows for each member, direction
all_to_all_splits bytes and rows from rank to rank, by layer and step
expert_load       rows that arrive at experts and their ranks
routing           loads summed over the run
"""
