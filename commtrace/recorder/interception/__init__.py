"""Interception of communication calls, of waits for them, and of operators.

`signatures` lists the operators that communicate. `interception` installs what `kernels` and
`waits` make for them. `pending` follows each call until it is complete, with `reducers` for calls
that C++ waits for and `device_events` for those on accelerators. `operators` is the dispatch mode
that records operators.
"""
