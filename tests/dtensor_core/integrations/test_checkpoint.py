"""Distributed checkpoints of DTensors: any layout loads into any other, torch's included."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.tensor as theirs
from torch import nn
from torch.distributed.checkpoint import state_dict as helpers
from torch.distributed.checkpoint.state_dict import StateDictOptions

from dtensor_core import (
    DeviceMesh,
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    _StridedShard,
    distribute_tensor,
    init_device_mesh,
)
from dtensor_core.errors import PlacementError
from dtensor_core.integrations import checkpoint
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.testing.fake import fake_world
from dtensor_core.testing.pool import run_processes
from dtensor_core.testing.threads import kept_mesh, on_threads, run_threads

LINE, SQUARE = (4,), (2, 2)
FULL = torch.arange(42.0).view(6, 7)
Layout = tuple[tuple[int, ...], tuple[Placement, ...]]
# Four ranks share six rows unevenly; of three elements one rank has none.
LAYOUTS: dict[str, Layout] = {
    "rows": (LINE, (Shard(0),)),
    "columns": (LINE, (Shard(1),)),
    "replicated": (LINE, (Replicate(),)),
    "rows and columns": (SQUARE, (Shard(0), Shard(1))),
    "rows by rows": (SQUARE, (Shard(0), Shard(0))),
    "columns, replicated": (SQUARE, (Replicate(), Shard(1))),
    "strided rows": (SQUARE, (_StridedShard(0, split_factor=2), Shard(0))),
    "strided columns": (SQUARE, (Shard(0), _StridedShard(1, split_factor=3))),
}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings about its own checkpoints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _laid_out(layout: Layout, full: torch.Tensor = FULL) -> DTensor:
    return distribute_tensor(full.clone(), kept_mesh(layout[0]), layout[1])


def _empty(layout: Layout, shape: tuple[int, ...] = (6, 7)) -> DTensor:
    return _laid_out(layout, torch.full(shape, -1.0))


def test_any_layout_is_read_back_in_any_other(tmp_path: Path) -> None:
    @on_threads(4)
    def body() -> None:
        with _quiet():
            dcp.save({n: _laid_out(at) for n, at in LAYOUTS.items()}, checkpoint_id=tmp_path)
            for at in LAYOUTS.values():
                state: dict[str, Any] = {name: _empty(at) for name in LAYOUTS}
                dcp.load(state, checkpoint_id=tmp_path)
                for name, each in state.items():
                    assert each.full_tensor().equal(FULL), (name, at)

    body()


def test_one_process_reads_what_four_wrote(tmp_path: Path) -> None:
    def write() -> None:
        with _quiet():
            dcp.save({n: _laid_out(at) for n, at in LAYOUTS.items()}, checkpoint_id=tmp_path)

    def read() -> None:
        mesh = kept_mesh((1,))
        state: dict[str, Any] = {name: torch.full((6, 7), -1.0) for name in LAYOUTS}
        state["rows"] = distribute_tensor(state["rows"], mesh, [Shard(0)])
        with _quiet():
            dcp.load(state, checkpoint_id=tmp_path)
        assert state.pop("rows").full_tensor().equal(FULL)
        assert all(each.equal(FULL) for each in state.values())

    run_threads(write, 4)
    run_threads(read, 1)


@pytest.mark.parametrize("shape", [(3,), (0, 3), (), (1, 5)])
def test_empty_shards_are_written_and_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    full = torch.randn(shape)
    sharded: Placement = Shard(len(shape) - 1) if shape else Replicate()

    @on_threads(4)
    def body() -> None:
        with _quiet():
            dcp.save({"x": _laid_out((LINE, (sharded,)), full)}, checkpoint_id=tmp_path)
            state = {"x": _empty((SQUARE, (Replicate(), sharded)), shape)}
            dcp.load(state, checkpoint_id=tmp_path)
        assert state["x"].full_tensor().equal(full)

    body()


def test_checkpoints_go_to_and_from_torchs_dtensor(tmp_path: Path) -> None:
    @on_threads(4)
    def body() -> None:
        line, square = kept_mesh(LINE), kept_mesh(SQUARE)
        with _quiet():
            dcp.save({"x": _laid_out(LAYOUTS["strided rows"])}, checkpoint_id=tmp_path / "ours")
            placements = [theirs.Shard(0), theirs.Shard(1)]
            read = {"x": theirs.distribute_tensor(torch.zeros(6, 7), square, placements)}
            dcp.load(read, checkpoint_id=tmp_path / "ours")
            assert read["x"].full_tensor().equal(FULL)

            written = {"x": theirs.distribute_tensor(FULL, line, [theirs.Shard(0)])}
            dcp.save(written, checkpoint_id=tmp_path / "theirs")
            state = {"x": _empty(LAYOUTS["strided columns"])}
            dcp.load(state, checkpoint_id=tmp_path / "theirs")
            assert state["x"].full_tensor().equal(FULL)

    body()


def _save_aside_and_load(path: Path) -> None:
    mesh = init_device_mesh("cpu", (2,))
    state: dict[str, Any] = {"x": distribute_tensor(FULL, mesh, [Shard(0)])}
    read: dict[str, Any] = {"x": distribute_tensor(torch.zeros(6, 7), mesh, [Shard(1)])}
    with _quiet():
        saving: Any = dcp.async_save(state, checkpoint_id=path)
        state["x"].zero_()  # the save uses the staged copy
        saving.result()
        dcp.load(read, checkpoint_id=path)
    assert read["x"].full_tensor().equal(FULL)


def test_a_checkpoint_is_saved_aside(tmp_path: Path) -> None:
    run_processes(_save_aside_and_load, 2, tmp_path)


def test_ranks_outside_of_the_mesh_hold_nothing() -> None:
    with fake_world(4, rank=3):
        mesh = DeviceMesh("cpu", torch.arange(2))
        x = distribute_tensor(FULL, mesh, [Shard(0)], src_data_rank=None)
        assert checkpoint.boxes(x._spec) == []


def test_partial_sums_are_refused() -> None:
    with fake_world(4):
        x = DTensor.from_local(FULL, init_device_mesh("cpu", (4,)), [Partial()])
        with pytest.raises(
            PlacementError, match="not supported for DTensor with partial placements"
        ):
            x.__create_write_items__("x", x)  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(ValueError, match="a checkpoint of"):
            x.__create_chunk_list__()  # pyright: ignore[reportAttributeAccessIssue]


def _model(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 6))


def _parallel(seed: int, mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(_model(seed), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def _trained(mesh: DeviceMesh) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = _parallel(0, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def _full(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _assert_same(
    first: tuple[nn.Module, torch.optim.Optimizer], second: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    assert second[1].param_groups[0]["lr"] == first[1].param_groups[0]["lr"]
    for one, other in zip(first[0].parameters(), second[0].parameters(), strict=True):
        assert _full(one).equal(_full(other))
        for name, value in first[1].state[one].items():
            assert _full(value).equal(_full(second[1].state[other][name])), name


def test_a_trained_model_moves_from_four_ranks_to_two_by_two(tmp_path: Path) -> None:
    @on_threads(4)
    def body() -> None:
        first = _trained(kept_mesh(LINE))
        model = _parallel(1, kept_mesh(SQUARE, ("dp", "tp"))["tp"])
        second = model, torch.optim.AdamW(model.parameters(), lr=0.3)
        with _quiet():
            parts = helpers.get_state_dict(*first)
            dcp.save(dict(zip("mo", parts, strict=True)), checkpoint_id=tmp_path)
            state: dict[str, Any] = dict(zip("mo", helpers.get_state_dict(*second), strict=True))
            dcp.load(state, checkpoint_id=tmp_path)
            helpers.set_state_dict(
                *second, model_state_dict=state["m"], optim_state_dict=state["o"]
            )
        _assert_same(first, second)

    body()


# torch does not set a flat state dict of full tensors.
@pytest.mark.parametrize(
    ("full", "offload", "flat"),
    [each for each in itertools.product((False, True), repeat=3) if not (each[0] and each[2])],
)
def test_state_dicts_of_model_and_optimizer_are_got_and_set(
    full: bool, offload: bool, flat: bool
) -> None:
    how = StateDictOptions(
        full_state_dict=full, cpu_offload=offload, flatten_optimizer_state_dict=flat
    )

    @on_threads(4)
    def body() -> None:
        first = _trained(kept_mesh(LINE))
        model = _parallel(1, kept_mesh(LINE))
        second = model, torch.optim.AdamW(model.parameters(), lr=0.3)
        with _quiet():
            of_model, of_optimizer = helpers.get_state_dict(*first, options=how)
            if how.full_state_dict and how.cpu_offload:  # on rank 0 alone
                assert bool(of_model) == (dist.get_rank() == 0)
                how_set = StateDictOptions(
                    full_state_dict=True,
                    broadcast_from_rank0=True,
                    flatten_optimizer_state_dict=how.flatten_optimizer_state_dict,
                )
            else:
                how_set = how
            kind = torch.Tensor if how.full_state_dict else DTensor
            assert all(type(value) is kind for value in of_model.values())
            helpers.set_model_state_dict(second[0], of_model, options=how_set)
            helpers.set_optimizer_state_dict(*second, of_optimizer, options=how_set)
        _assert_same(first, second)

    body()


@pytest.mark.parametrize("broadcast_from_rank0", [False, True])
def test_a_model_without_storage_takes_a_full_state_dict(broadcast_from_rank0: bool) -> None:
    full = _model(0).state_dict()

    @on_threads(4)
    def body() -> None:
        with torch.device("meta"):
            model = _parallel(1, kept_mesh(LINE))
        has_it = not broadcast_from_rank0 or dist.get_rank() == 0
        how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast_from_rank0)
        with _quiet():
            helpers.set_model_state_dict(model, dict(full) if has_it else {}, options=how)
        for name, parameter in model.named_parameters():
            assert isinstance(parameter, DTensor)
            assert isinstance(parameter, nn.Parameter)
            assert parameter.full_tensor().equal(full[name]), name

    body()


def test_a_checkpoint_is_loaded_into_tensors_without_storage(tmp_path: Path) -> None:
    @on_threads(4)
    def body() -> None:
        mesh = kept_mesh(LINE)
        layouts: tuple[Placement, ...] = (Shard(0), Shard(1), Replicate())
        with _quiet():
            saved = {str(p): distribute_tensor(FULL[:3], mesh, [p]) for p in layouts}
            dcp.save(saved, checkpoint_id=tmp_path)
            nothing = torch.empty(3, 7, device="meta")
            state: dict[str, Any] = {str(p): distribute_tensor(nothing, mesh, [p]) for p in layouts}
            dcp.load(state, checkpoint_id=tmp_path)
        for name, each in state.items():
            assert not each.is_meta
            assert each.to_local().equal(saved[name].to_local())

    body()


def test_the_helpers_still_serve_torchs_dtensors() -> None:
    full = _model(0).state_dict()

    @on_threads(2)
    def body() -> None:
        mesh = kept_mesh((2,))
        with torch.device("meta"):
            model = _model(1)
        for layer in (model[0], model[2]):  # pyright: ignore[reportIndexIssue]
            for name, parameter in list(layer.named_parameters()):
                sharded = theirs.distribute_tensor(parameter, mesh, [theirs.Shard(0)])
                layer.register_parameter(name, nn.Parameter(sharded))
        how = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        with _quiet():
            given = dict(full) if dist.get_rank() == 0 else {}
            helpers.set_model_state_dict(model, given, options=how)
            assert all(isinstance(each, theirs.DTensor) for each in model.parameters())
            read = helpers.get_model_state_dict(
                model, options=StateDictOptions(full_state_dict=True)
            )
        for name, value in read.items():
            assert type(value) is torch.Tensor
            assert value.equal(full[name])

    body()
