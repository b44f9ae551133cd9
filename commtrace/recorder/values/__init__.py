"""Fingerprints of tensors, computed without communication while a program runs.

    observer      decides which tensors are observed: modules' outputs, gradients, parameters
    result_mode   results of operators, a dispatch mode
    declared      layouts that the program declares
    owners        names of parameters, and groups that hold replicas of them
    found_tensors tensors in structures, and the numbers of the latest ones
    layouts       the part of the global tensor that a rank holds, from the tensor itself
    sketches      the numbers that are kept of a part

`events.observed_value` is an observed tensor, until it is a row of table `fingerprints`.
"""
