"""Notebook integration: record a cell, or run a function of the notebook on several ranks.

%load_ext commtrace

%%commtrace run
train()

run = commtrace.launch(train, nproc=4)
"""

from __future__ import annotations

from typing import Any

from commtrace.jupyter.launching import Launched, launch

__all__ = ["Launched", "launch", "load_ipython_extension"]


def load_ipython_extension(shell: Any) -> None:
    """Register the magic `%%commtrace`; IPython calls this for `%load_ext commtrace`."""
    from commtrace.jupyter.magic import CommtraceMagics

    shell.register_magics(CommtraceMagics)
