"""The command line of commtrace: `commtrace --help`.

A command is a function in a file of its own, an option is declared once in `options`, and nothing
that takes long to import is imported before a command needs it.
"""
