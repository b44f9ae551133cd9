"""Baseline entries whose test no longer exists.

Only test files collected as a whole are checked, since a test that was not selected still exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from commtrace.pytest_plugin import baseline
from commtrace.pytest_plugin.options import setting
from commtrace.pytest_plugin.verdict import test_name


def stale_entries(config: pytest.Config, items: Sequence[pytest.Item]) -> dict[str, list[str]]:
    """Return by baseline file the entries that no collected test has."""
    partly = {
        (config.invocation_params.dir / argument.partition("::")[0]).resolve()
        for argument in config.args
        if "::" in argument
    }
    names: dict[Path, set[str]] = {}
    for item in items:
        names.setdefault(item.path, set()).add(test_name(item))
    folder, root = setting(config, "baseline_dir"), config.rootpath
    found = {}
    for file, known in names.items():
        path = baseline.path_of(file, folder, root)
        stale = [] if file.resolve() in partly else sorted({*baseline.read(path)} - known)
        if stale:
            inside = path.relative_to(root) if path.is_relative_to(root) else path
            found[inside.as_posix()] = stale
    return found
