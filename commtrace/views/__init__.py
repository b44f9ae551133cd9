"""A run that can be looked at: its tables, pictures and findings as methods, and itself as a card.

    run = commtrace.load("run.json")
    run.table("by_module"), run.flame(), run.timeline(), run.findings()

`run.Run` is what `commtrace.load` returns; a recording has the same methods, those of
`views.Views`, which load what they need when they are called.
"""
