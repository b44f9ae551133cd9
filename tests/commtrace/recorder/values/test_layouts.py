"""The elements that a layout says a rank holds are those that distributed tensors hold."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.distributed import tensor as torchs
from torch.distributed.device_mesh import init_device_mesh

import dtensor_core
from commtrace.recorder.values.layouts import Layouts, indices
from commtrace.recorder.values.sketches import Weights, facts_of
from commtrace.schema import NUM_SKETCHES
from dtensor_core import DTensor, Shard
from dtensor_core.placement import strided_shard
from dtensor_core.testing import fake_world, run_threads

SIZES = (2, 3)
SHAPE = (7, 12)

_OURS = [
    dtensor_core.Replicate(),
    dtensor_core.Shard(0),
    dtensor_core.Shard(1),
    strided_shard(1, 2),
    dtensor_core.Partial(),
    dtensor_core.Partial("max"),
]
_TORCHS = [torchs.Replicate(), torchs.Shard(0), torchs.Shard(1), torchs.Partial()]


@pytest.mark.parametrize(
    ("package", "placements"), [(dtensor_core, _OURS), (torchs, _TORCHS)], ids=["ours", "torchs"]
)
def test_a_part_has_the_elements_that_its_layout_states(package: Any, placements: Any) -> None:
    def body() -> list[str]:
        mesh = init_device_mesh("cpu", SIZES, mesh_dim_names=("dp", "tp"))
        numbers = torch.arange(float(SHAPE[0] * SHAPE[1])).view(SHAPE)
        wrong = []
        for pair in itertools.product(placements, repeat=2):
            tensor = package.distribute_tensor(
                numbers, mesh, [_replicated(package, each) for each in pair]
            )
            local, layout = Layouts().of(tensor)
            coordinate: Any = mesh.get_coordinate()
            index = indices(pair, SHAPE, SIZES, coordinate)
            expected = numbers
            for dim, own in enumerate(index):
                expected = expected[(slice(None),) * dim + (own,)]
            if layout.weights is None or not torch.equal(local, expected):
                wrong.append(str(pair))
        return wrong

    assert run_threads(body, 6) == [[]] * 6


def _replicated(package: Any, placement: Any) -> Any:
    """Return a placement in which a partial sum has the elements of the tensor."""
    return package.Replicate() if placement.is_partial() else placement


def test_a_layout_is_named_by_its_mesh_and_placements() -> None:
    def body() -> tuple[str, str, tuple[int, ...]]:
        mesh = init_device_mesh("cpu", SIZES, mesh_dim_names=("dp", "tp"))
        placements = [dtensor_core.Partial(), strided_shard(1, 2)]
        tensor = dtensor_core.DTensor.from_local(
            torch.ones(4, 4), mesh, placements, shape=torch.Size((4, 12)), stride=(12, 1)
        )
        _, layout = Layouts().of(tensor)
        return layout.mesh, layout.placements, layout.shape

    expected = ("dp=2,tp=3:0,1,2,3,4,5", "P(sum),S(1/2)", (4, 12))
    assert run_threads(body, 6) == [expected] * 6


def test_a_part_of_another_size_than_its_layout_states_is_unknown() -> None:
    def body() -> bool:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        tensor = torchs.DTensor.from_local(
            torch.ones(2, 2), mesh, [torchs.Shard(0)], shape=torch.Size((5, 2)), stride=(2, 1)
        )
        return Layouts().of(tensor)[1].weights is None

    # Of five rows, the first rank has three.
    assert run_threads(body, 2) == [True, False]


def test_the_layout_of_a_plain_tensor_is_its_own_shape() -> None:
    tensor = torch.ones(2, 3)
    local, layout = Layouts().of(tensor)
    assert local is tensor
    assert (layout.shape, layout.mesh, layout.placements) == ((2, 3), "", "")


def test_replicas_of_plain_tensors_are_named_by_their_ranks() -> None:
    _, layout = Layouts().of(torch.ones(2), "replicas=3:0,2,5")
    assert (layout.mesh, layout.placements) == ("replicas=3:0,2,5", "R")


def test_layouts_are_found_again_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layouts = Layouts()
    first = layouts.of(torch.ones(2))[1]
    assert layouts.of(torch.zeros(2))[1] is first
    monkeypatch.setattr("commtrace.recorder.values.layouts._MAX_LAYOUTS", 4)
    for length in range(20):
        layouts.of(torch.ones(length))
    assert len(layouts._known) <= 4


def test_random_numbers_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commtrace.recorder.values.layouts._MAX_BYTES", 100_000)
    known = Layouts()
    made = [known.of(torch.empty(size, 64))[1] for size in range(1, 200)]
    kept = [layout for _, layout in known._known.values()]
    assert kept[-1] is made[-1]
    assert len(kept) < 50
    assert sum(each.weights.num_bytes for each in kept if each.weights) <= 100_000
    assert known.of(torch.empty(199, 64))[1] is made[-1]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_random_numbers_of_a_long_tensor_take_less_memory_than_it_and_add_up(
    num_ranks: int,
) -> None:
    length = (1 << 18) + 1001
    tensor = torch.randn(length, generator=torch.Generator().manual_seed(0))
    whole = Layouts().of(tensor)[1].weights
    assert whole is not None
    assert whole.num_bytes < tensor.nbytes / 5
    size = -(-length // num_ranks)
    found = []
    for rank in range(num_ranks):
        with fake_world(num_ranks, rank=rank):
            mesh = init_device_mesh("cpu", (num_ranks,), mesh_dim_names=("tp",))
            own = tensor[rank * size : (rank + 1) * size]
            part = DTensor.from_local(own, mesh, [Shard(0)], shape=(length,), stride=(1,))
            local, layout = Layouts().of(part)
            assert layout.weights is not None
            found.append(facts_of(local, layout.weights))
    facts = torch.stack(found)[:, : NUM_SKETCHES + 1].sum(0)
    torch.testing.assert_close(facts, facts_of(tensor, whole)[: NUM_SKETCHES + 1])
    apart = [Weights((length,), [torch.arange(begin, length, 2)]) for begin in range(2)]
    found = [facts_of(tensor[begin::2], weights) for begin, weights in enumerate(apart)]
    torch.testing.assert_close(torch.stack(found)[:, : NUM_SKETCHES + 1].sum(0), facts)
    swapped = tensor.clone()
    swapped[[5, 5 + 1024]] = tensor[[5 + 1024, 5]]
    assert (facts_of(swapped, whole)[:NUM_SKETCHES] - facts[:NUM_SKETCHES]).abs().min() > 1e-3


def test_partial_values_of_an_unknown_class_are_no_sums() -> None:
    """Those of torch's sharded embedding are masked, and are added up by their own class."""
    with fake_world(2):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        table = torchs.distribute_tensor(torch.ones(8, 4), mesh, [torchs.Shard(0)])
        tokens = torchs.distribute_tensor(torch.arange(8), mesh, [torchs.Replicate()])
        masked = torch.nn.functional.embedding(tokens, table)
        _, layout = Layouts().of(masked)
        assert layout.placements == "P(_MaskPartial)"
        _, layout = Layouts().of(masked.redistribute(placements=[torchs.Replicate()]))
        assert layout.placements == "R"
