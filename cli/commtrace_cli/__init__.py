"""Command line of commtrace: `commtrace --help`.

Each command is a function in its own file. Options are declared once, in `options`. Slow imports
are deferred until a command needs them.
"""
