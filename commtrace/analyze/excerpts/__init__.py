"""Parts of a run that are analysed alone: some of its calls, its steps, or a time window.

excerpt           some calls in memory, with values of the whole run
time_window       a time window or some steps, as runs of their own
"""
