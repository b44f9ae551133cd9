"""The machinery of sharding rules, which the families share.

A family's table has a `row` per operator: a line of `notation`, or one made by `elementwise`,
`batched`, `rearranged_rows` or `rule_builders`. A row makes the `sharding_rule` of a `call`; `halo`
and `summary_merge` add candidates whose ranks exchange something, and `scaling` excludes Partials.
"""
