"""Lines of the program at which calls are made, or from which what makes them is called."""

from __future__ import annotations

from itertools import zip_longest

import pandas as pd

from commtrace.analyze.divergence.branches import Lines, line_that_calls

_UNKNOWN = -1


def place_of(call: pd.Series | None, base: pd.Series, lines: Lines) -> int | None:
    """Return the line of a call in the function of another, or that of what it calls there.

    Returns:
        The line; -1 without a call, and None if it is not found.
    """
    if call is None:
        return _UNKNOWN
    if all(call[name] == base[name] for name in ("source_file", "source_function")):
        return int(call["source_line"])
    found = line_that_calls(lines, str(call["source_function"]), _UNKNOWN)
    return found if found > 0 else None


def line_of_module(call: pd.Series | None, other: pd.Series | None, lines: Lines) -> int | None:
    """Return the line that calls the module in which two calls differ; None if it is not found."""
    if call is None or other is None:
        return None
    own, others = (str(each["module"]).split(".") for each in (call, other))
    pairs = zip_longest(own, others, fillvalue="")
    name = next((mine for mine, theirs in pairs if mine != theirs), "")
    found = line_that_calls(lines, name, _UNKNOWN)
    return found if found > 0 else None
