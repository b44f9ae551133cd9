"""An IPython shell in this process, and cells run in it."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A new notebook, without the extension loaded, whatever environment is active."""
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    try:
        yield made
    finally:
        made.restore_sys_module_state()
        atexit.unregister(made.atexit_operations)
        made.atexit_operations()
        InteractiveShell.clear_instance()


@pytest.fixture
def cell(shell: Any) -> Any:
    """Run a cell and raise its error, if any."""

    def run(source: str) -> Any:
        result = shell.run_cell(source, store_history=True)
        result.raise_error()
        return result.result

    run("%load_ext commtrace")
    return run
