"""In a notebook: record a cell, and run a function of the notebook on several ranks.

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
    """What `%load_ext commtrace` does: the magic `%%commtrace` is there."""
    from commtrace.jupyter.magic import CommtraceMagics

    shell.register_magics(CommtraceMagics)
