"""Runs of programs that assert the number of their collectives, with each counter that must agree.

A body is called with a class of counting modes. It runs on four ranks that are threads, with the
mode of `dtensor_core.debug`, and on a fake group of four, with torch's own mode, whose hooks on
modules need a process per rank.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.tensor.debug import CommDebugMode as TorchCommDebugMode

from dtensor_core.debug import CommDebugMode
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.threads import run_threads

RANKS = 4
functional = torch.ops.c10d_functional
native = torch.ops._c10d_functional

Body = Callable[[Any], None]


def on_threads_with_ours(body: Body, ranks: int = RANKS) -> None:
    """Run a body on threads, counting with the mode of `dtensor_core.debug`."""
    run_threads(lambda: body(CommDebugMode), ranks)


def on_a_fake_group_with_torchs(body: Body, ranks: int = RANKS) -> None:
    """Run a body as rank 0 of a fake group, counting with torch's mode."""
    with fake_world(ranks), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Full backward hook is firing")  # torch's mode has one
        body(TorchCommDebugMode)


with_each_counter = pytest.mark.parametrize(
    "run", [on_threads_with_ours, on_a_fake_group_with_torchs], ids=["ours", "torchs"]
)
