"""Operator families: a folder for each, with its sharding `rule` and its `local` kernels, if any.

The modules beside the folders are what the families share.
"""
