"""Arguments and options of all commands, each declared once, by topic.

A command lists those it takes: `from commtrace_cli.options import inputs, printing`.
"""
