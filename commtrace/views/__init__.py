"""Views of a run: its tables, pictures and findings as methods, and a summary card.

    run = commtrace.load("run.json")
    run.table("by_module"), run.flame(), run.timeline(), run.findings()

`commtrace.load` returns a `run.Run`. A recording has the same methods (`views.Views`), which
import their dependencies when they are called.
"""
