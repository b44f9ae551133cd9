"""Programs in any layout agree with one device: no false alarm."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from commtrace.analyze import CATALOG, Frames
from commtrace.analyze.values import compare, replicas
from tests.values.programs import (
    Convolution,
    Transformer,
    as_replicas,
    by_batch,
    by_length,
    recorded,
    replicated,
    sequence_parallel,
    tensor_parallel,
)

LAYOUTS: dict[str, tuple[type[nn.Module], int, dict[str, Any]]] = {
    "tp": (Transformer, 4, {"sizes": {"tp": 4}, "parallelize": tensor_parallel}),
    "dp of tp": (Transformer, 4, {"sizes": {"dp": 2, "tp": 2}, "parallelize": tensor_parallel}),
    "sp": (Transformer, 2, {"sizes": {"tp": 2}, "parallelize": sequence_parallel}),
    **{
        f"{model.__name__} {name}": (
            model,
            size,
            {"sizes": {name: size}, "parallelize": replicated, "feed": feed},
        )
        for model in (Transformer, Convolution)
        for name, size, feed in (
            ("dp", 4, by_batch),
            ("cp", 2, by_length),
            ("same", 3, as_replicas),
        )
    },
}


@cache
def on_one_device(model: type[nn.Module], dtype: torch.dtype) -> Frames:
    return recorded(model, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_agrees_with_one_device(layout: str, dtype: torch.dtype) -> None:
    model, world_size, options = LAYOUTS[layout]
    run = recorded(model, world_size, dtype=dtype, **options)
    found = compare(on_one_device(model, dtype), run)
    assert found.agrees, found.fault
    assert found.num_paired > 100
    assert found.num_unknown == 0
    assert replicas(run).empty
    assert not CATALOG["consistency"].function(run)["is_fault"].any()
