"""Starting, watching and ending of ranks, and recording of programs that do not import commtrace.

`launcher` starts local ranks; `auto` and `record_program` record the ranks of other launchers.
"""
