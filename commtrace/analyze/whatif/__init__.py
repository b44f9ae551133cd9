"""Changes of a run by their texts, which may name findings, and the changes that pay.

replay      a run with changes
findings    what could be improved; their savings come from replays with changes
whatif      texts such as `remove where finding=3`, and the table of the best changes
"""
