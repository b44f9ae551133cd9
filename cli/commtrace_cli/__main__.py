"""Entry point of `python -m commtrace_cli`, the same as `commtrace`."""

from commtrace_cli.main import main

main()
