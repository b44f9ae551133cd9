"""`python -m commtrace_cli` is `commtrace`."""

from commtrace_cli.main import main

main()
