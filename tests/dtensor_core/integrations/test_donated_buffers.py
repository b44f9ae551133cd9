"""A compiled backward overwrites a saved tensor only if nothing else has its memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._functorch._aot_autograd import graph_compile
from torch._subclasses import FakeTensorMode

from dtensor_core import Replicate, Shard, distribute_tensor, init_device_mesh
from dtensor_core.testing import run_threads
from tests.dtensor_core.works_with.compiled import check, forgotten, needs_cpp  # noqa: F401


def test_memory_of_two_saved_tensors_is_not_donated() -> None:
    with FakeTensorMode():
        x, product, other = torch.ones(4), torch.ones(4), torch.ones(4)
        saved = [product[:2], product[1:], x[:2], other[:2], None]
        collect: Any = graph_compile.collect_fw_donated_buffer_idxs
        assert collect([x], [], [], saved) == [3]


def two_shards(
    x: torch.Tensor, w: torch.Tensor, y: torch.Tensor, z: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The backward needs this rank's rows of the product twice, in two shapes."""
    product = x @ w
    return product * y, product.view(8, 4, 4) * z


def compare_two_shards() -> None:
    mesh = init_device_mesh("cpu", (4,))
    values = torch.Generator().manual_seed(0)
    whole, rows = [Replicate()], [Shard(0)]
    layouts = (((8, 16), whole), ((16, 16), whole), ((8, 16), rows), ((8, 4, 4), rows))
    arguments = [
        distribute_tensor(torch.rand(shape, generator=values), mesh, placements).requires_grad_()
        for shape, placements in layouts
    ]
    check(two_shards, arguments, backend="inductor")


@needs_cpp
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
def test_gradients_of_two_shards_of_a_tensor() -> None:
    with torch._inductor.config.patch(compile_threads=1):  # pyright: ignore
        run_threads(compare_two_shards, 4, timeout_s=240)


def hidden(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return ((x @ w).sin(),)


def shown(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`hidden`, with an equal backward, that must not overwrite the product."""
    product = x @ w
    return product.sin(), product.detach()


@needs_cpp
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
def test_a_cached_backward_overwrites_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, w = torch.ones(8, 16), torch.eye(16).requires_grad_()
    with torch._inductor.config.patch(compile_threads=1):  # pyright: ignore
        for _ in range(2):
            torch._dynamo.reset()
            counters.clear()
            for function in (hidden, shown):
                sine, *products = torch.compile(function)(x, w)
                sine.sum().backward()
                assert all(product.equal(x) for product in products)
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
