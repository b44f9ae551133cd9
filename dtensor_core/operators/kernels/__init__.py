"""The machinery of local kernels, which the families share: a rank's parts, and operators on them.

Nothing here knows a sharding rule.
"""
