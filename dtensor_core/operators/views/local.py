"""Squeezes of local shards."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtensor_core.operators.kernels.local_operator import Local, LocalMaker
from dtensor_core.spec import Spec


def squeezing(dims: list[int]) -> LocalMaker:
    """Squeeze the dims of global size 1; others may have size 1 on a shard, and stay."""

    def maker(op: Local, inputs: Sequence[Spec], outputs: Sequence[Spec | None]) -> Local:
        return lambda x, *unused: torch.ops.aten.squeeze.dims(x, dims)

    return maker
