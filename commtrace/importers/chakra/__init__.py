"""Importer of execution traces of MLCommons Chakra, one file per rank.

`files` reads messages and checks them, `rows` makes rows of nodes, and `importer` joins the ranks.
"""
