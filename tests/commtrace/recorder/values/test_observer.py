"""Recording of fingerprints: which tensors, on which ranks, and nothing of the program changes."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import commtrace
from commtrace.errors import RecordingError, UsageError
from commtrace.recorder import RECORDER
from commtrace.recorder.values.found_tensors import tensors_in
from commtrace.recorder.values.sketches import facts_of
from commtrace.schema import NUM_SKETCHES
from commtrace.torch_internals.dispatcher import current_mode
from commtrace.tracefile import read_trace
from dtensor_core import DTensor, Partial, Replicate, Shard, distribute_tensor
from dtensor_core.testing import fake_world, run_processes, run_threads


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def train(model: nn.Module, num_steps: int = 2, recording: Any = None) -> list[torch.Tensor]:
    """Train a model; return its parameters and losses."""
    optimizer = torch.optim.Adam(model.parameters())
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(num_steps):
        loss = model(torch.randn(6, 4, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if recording is not None:
            recording.step()
    return [*(each.detach() for each in model.parameters()), *losses]


def rows(recording: commtrace.Recording, **chosen: Any) -> list[dict[str, Any]]:
    """Return the rows of table `fingerprints` with the chosen values of columns."""
    table = recording.trace().tables["fingerprints"]
    every = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
    return [row for row in every if all(row[name] == value for name, value in chosen.items())]


@pytest.mark.parametrize("values", ["module", "op"])
def test_a_recorded_program_computes_the_same_numbers(values: str) -> None:
    expected = train(net())
    state = torch.get_rng_state()
    with commtrace.record(values=values):
        found = train(net())
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    torch.set_rng_state(state)


def test_every_role_is_observed() -> None:
    with commtrace.record(values="op") as recording:
        train(net(), recording=recording)
    counts = Counter(row["role"] for row in rows(recording, step=1))
    assert counts["result"] > 10
    del counts["result"]
    # Four layers and their container; running mean and variance before and after.
    assert counts == {
        "input": 1, "output": 5, "output_gradient": 5, "gradient": 6, "updated": 6, "state": 12,
        "buffer": 2, "local_gradient": 6, "loss": 1,
    }  # fmt: skip
    assert len(rows(recording, role="parameter")) == 6
    assert len(rows(recording, role="buffer", step=0)) == 4


def test_modules_only_are_observed_at_level_module() -> None:
    with commtrace.record(values="module") as recording:
        train(net())
    roles = {row["role"] for row in rows(recording)}
    assert "result" not in roles
    assert "output" in roles


def test_nothing_is_observed_without_being_asked() -> None:
    call = nn.Module.__call__
    with commtrace.record() as recording:
        train(net())
    assert rows(recording) == []
    assert nn.Module.__call__ is call


def test_everything_is_restored_when_the_recording_ends() -> None:
    call = nn.Module.__call__
    with commtrace.record(values="op"):
        train(net())
    assert nn.Module.__call__ is call
    assert current_mode() is None


def test_an_output_names_its_module_and_its_call() -> None:
    with commtrace.record(values="module") as recording:
        train(net())
    found = rows(recording, role="output", module="3")
    assert [(row["module_class"], row["module_call"], row["shape"]) for row in found] == [
        ("Linear", 0, "[6,2]"),
        ("Linear", 1, "[6,2]"),
    ]


def test_a_result_names_its_operator_and_line() -> None:
    with commtrace.record(values="op") as recording:
        _ = torch.ones(2, 3) + 1.0
    (row,) = rows(recording, op="aten.add.Tensor")
    assert Path(row["source_file"]).name == Path(__file__).name
    assert (row["total"], row["norm"], row["largest"]) == (12.0, pytest.approx(24**0.5), 2.0)


def test_a_named_tensor_is_observed() -> None:
    with commtrace.record(values="module") as recording:
        recording.observe("loss", torch.tensor(1.5))
    (row,) = rows(recording)
    assert (row["role"], row["name"], row["total"]) == ("named", "loss", 1.5)


def test_naming_a_tensor_that_nobody_records_is_an_error() -> None:
    recording = commtrace.record(values="module")
    with pytest.raises(RecordingError, match="the recording is not on"):
        recording.observe("loss", torch.tensor(1.5))
    without = commtrace.record()
    with without, pytest.raises(RecordingError, match="it records no values"):
        without.observe("loss", torch.tensor(1.5))


def test_an_unknown_level_is_an_error() -> None:
    with pytest.raises(UsageError, match="cannot record values='all'"):
        commtrace.record(values="all")


def test_without_an_optimizer_gradients_are_observed_at_the_end_of_the_step() -> None:
    model = net()
    with commtrace.record(values="module") as recording:
        model(torch.ones(6, 4)).sum().backward()
        recording.step()
    assert len(rows(recording, role="gradient", step=0)) == 6
    assert rows(recording, role="gradient", step=-1) == []


def test_only_recorded_steps_are_observed() -> None:
    with commtrace.record(values="op", every=2) as recording:
        train(net(), num_steps=4, recording=recording)
    assert {row["step"] for row in rows(recording)} == {0, 2}
    ops = Counter(row["step"] for row in rows(recording, role="result"))
    assert min(ops[0], ops[2]) > 10


@pytest.mark.parametrize("detail", ["op", "collective"])
def test_results_of_recorded_steps_are_observed(detail: str) -> None:
    with commtrace.record(values="op", detail=detail, every=2) as recording:
        for _ in range(4):
            torch.ones(2)
            recording.step()
    assert [row["step"] for row in rows(recording, role="result")] == [0, 2]


def test_another_thread_that_ends_steps_leaves_no_mode() -> None:
    def steps() -> None:
        for _ in range(3):
            recording.step()
        modes.append(current_mode())

    modes: list[Any] = []
    with commtrace.record(values="op", every=2) as recording:
        thread = threading.Thread(target=steps)
        thread.start()
        thread.join()
    assert [*modes, current_mode()] == [None, None]


def test_a_pause_is_not_observed() -> None:
    with commtrace.record(values="op") as recording, recording.paused():
        train(net())
    assert rows(recording) == []


def test_a_recording_within_another_that_wants_no_values() -> None:
    with commtrace.record() as outer:
        with commtrace.record(values="op") as inner:
            train(net())
        train(net())
    assert rows(outer) == []
    num_inner = len(rows(inner))
    assert len(rows(inner, role="result")) > 20
    assert len(rows(inner)) == num_inner


def test_the_number_of_rows_is_bounded() -> None:
    with commtrace.record(values="op", max_calls=3) as recording:
        train(net())
    assert len(rows(recording)) == 30
    (dropped,) = recording.trace().tables["ranks"]["num_fingerprints_dropped"]
    assert dropped > 100


def test_recomputed_modules_are_of_the_phase_recompute() -> None:
    model = net()
    with commtrace.record(values="module") as recording:
        output = checkpoint(model, torch.ones(6, 4, requires_grad=True), use_reentrant=False)
        output.sum().backward()
    # The last module is not needed again, so its recomputation is cut short.
    phases = Counter(row["phase"] for row in rows(recording, role="output", module="0"))
    assert phases == {"forward": 1, "recompute": 1}


def test_tensors_without_numbers_are_not_observed() -> None:
    with commtrace.record(values="op") as recording:
        _ = torch.arange(4) + 1, torch.ones(2, device="meta") + 1
        torch.ones(2).to_sparse()
    assert {row["dtype"] for row in rows(recording)} == {"float32"}
    assert {row["shape"] for row in rows(recording)} == {"[2]"}


@pytest.mark.parametrize("values", ["module", "op"])
@pytest.mark.filterwarnings("error:.*failures while recording")
def test_tensors_that_stand_for_others_are_not_observed(values: str) -> None:
    layer, x = nn.Linear(4, 4), torch.ones(4)
    with commtrace.record(values=values) as recording:
        torch.vmap(layer)(torch.ones(3, 4))
        torch.func.grad(lambda given: layer(given).sum())(x)
        torch.autograd.functional.jacobian(layer, x, vectorize=True)
    observed = rows(recording, role="output")
    assert len(observed) == 1  # of the last call, whose batched gradients are not observed
    assert not rows(recording, role="output_gradient")
    assert bool(rows(recording, role="result")) == (values == "op")


@pytest.mark.filterwarnings("error:.*failures while recording")
def test_parameters_are_observed_in_functions_that_are_transformed() -> None:
    model = nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 5))  # shapes that no other test observes
    with commtrace.record(values="op") as recording:
        torch.func.grad(lambda given: (given + model(torch.ones(2, 3)).sum()).sum())(torch.ones(2))
    assert len(rows(recording, role="parameter")) == 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("error:.*failures while recording")
def test_nested_tensors_are_not_observed() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=True).eval()
    mask = torch.tensor([[False, False, True], [False, False, False]])
    with commtrace.record(values="op") as recording, torch.no_grad():
        encoder(torch.ones(2, 3, 8), src_key_padding_mask=mask)
    assert rows(recording, role="output", module="")


@pytest.mark.filterwarnings("error:.*failures while recording")
def test_lazy_modules_and_attributes_that_raise_cost_no_observation() -> None:
    class Strict(nn.Module):
        def __getattr__(self, name: str) -> Any:
            raise KeyError(name)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with commtrace.record(values="module") as recording:
        Strict()(nn.LazyLinear(3)(torch.ones(2, 2)))
    assert [row["shape"] for row in rows(recording, role="output")] == ["[2,3]", "[2,3]"]
    assert len(rows(recording, role="input")) == 2


def test_a_tensor_whose_storage_was_freed_is_not_observed() -> None:
    freed = torch.ones(8)
    freed.untyped_storage().resize_(0)
    with commtrace.record(values="module") as recording:
        nn.Identity()(freed)
    assert not rows(recording)


@pytest.mark.filterwarnings("error:.*failures while recording")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wrappers_are_not_observed_unless_they_stand_for_the_result_of_a_collective(
    dtype: torch.dtype,
) -> None:
    ones = torch.ones(3, dtype=dtype)

    def rank() -> list[float]:
        world: Any = dist.group.WORLD
        summed = all_reduce(ones, "sum", world)
        assert type(summed) is not torch.Tensor
        nn.Identity()(summed)
        nn.Identity()(TwoTensor(ones, ones))
        return summed.tolist()

    with commtrace.record(values="module") as recording:
        assert run_threads(rank, 2) == [[2.0] * 3] * 2
    assert {(row["role"], row["largest"]) for row in rows(recording)} == {
        ("input", 2.0),
        ("output", 2.0),
    }


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("values", ["module", "op"])
def test_a_traced_module_is_the_same(values: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.ones(2, 4)
    trace: Any = torch.jit.trace
    expected = str(trace(model, x, check_trace=False).code)
    with commtrace.record(values=values) as recording:
        assert str(trace(model, x).code) == expected
        model(x)
    assert len(rows(recording, role="parameter")) == 2


@pytest.mark.filterwarnings("error:.*failures while recording")
@pytest.mark.parametrize("values", ["module", "op"])
def test_a_default_device_changes_no_number(values: str) -> None:
    found = []
    for device in ("cpu", "meta"):
        with commtrace.record(values=values) as recording, torch.device(device):
            for size in (2, 1000, 100_000):
                nn.Identity()(torch.arange(size, dtype=torch.float32, device="cpu") + 0.5)
        found.append([row["norm"] for row in rows(recording)])
    assert found[0] == found[1]


def test_a_distributed_tensor_is_observed_once_with_its_global_shape() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
        tensor = DTensor.from_local(torch.ones(2, 3), mesh, [Shard(0)])
        with commtrace.record(values="op") as recording:
            _ = tensor * 2.0
    (row,) = rows(recording, op="aten.mul.Tensor")
    assert (row["shape"], row["mesh"], row["placements"]) == ("[8,3]", "tp=4:0,1,2,3", "S(0)")
    assert row["total"] == 12.0


def test_observing_communicates_nothing() -> None:
    def body() -> tuple[int, int]:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        counts = []
        for values in (None, "op"):
            with commtrace.record(values=values) as recording:
                tensor = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
                partial = DTensor.from_local(torch.ones(4), mesh, [Partial()])
                total: Any = tensor.sum() + partial.redistribute(mesh, [Replicate()]).sum()
                total.full_tensor()
            counts.append(recording.total())
        return counts[0], counts[1]

    for before, after in run_threads(body, 2):
        assert before == after > 0


def _ddp(path: str) -> None:
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    with commtrace.record(path, values="module"):
        model(torch.full((3, 4), float(dist.get_rank()))).sum().backward()


def test_parameters_of_replicated_models_are_replicas(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    run_processes(_ddp, 2, str(path))
    table = read_trace(path).tables["fingerprints"]
    by_role = {(role, mesh) for role, mesh in zip(table["role"], table["mesh"], strict=True)}
    assert ("gradient", "replicas=2:0,1") in by_role
    assert ("input", "data=2:0,1") in by_role


def test_failures_of_observing_never_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no sketch")

    monkeypatch.setattr("commtrace.recorder.values.observer.facts_of", fail)
    with pytest.warns(RuntimeWarning, match="no sketch"), commtrace.record(values="op"):
        train(net())
    RECORDER.failures.clear()


def test_tensors_are_found_in_structures() -> None:
    one = torch.ones(1)
    structure = ({"a": [one, 2]}, (one, {"b": {"c": one}}))
    assert [name for name, _ in tensors_in(structure)] == ["0.a.0", "1.0", "1.1.b.c"]
    assert [name for name, _ in tensors_in(one)] == [""]
    endless: list[Any] = [one]
    endless.append(endless)
    assert len(list(tensors_in(endless))) < 20


def test_complex_numbers_are_observed_by_their_parts() -> None:
    with commtrace.record(values="module") as recording:
        recording.observe("x", torch.tensor([3 + 4j, 0]))
    (row,) = rows(recording)
    assert (row["norm"], row["total"], row["dtype"]) == (5.0, 7.0, "complex64")
    assert len({row[f"sketch_{number}"] for number in range(NUM_SKETCHES)}) == NUM_SKETCHES


def test_memory_that_nothing_was_written_to_is_not_observed() -> None:
    with commtrace.record(values="op") as recording:
        x = torch.empty(3).fill_(1.0)
        torch.empty_like(x).copy_(x.new_empty(3).zero_())
        torch.empty_strided((2,), (1,)).zero_()
    ops = {row["op"] for row in rows(recording, role="result")}
    assert ops == {"aten.fill_.Scalar", "aten.copy_.default", "aten.zero_.default"}


def test_what_an_operator_writes_in_place_is_seen_as_it_is_then() -> None:
    with commtrace.record(values="op") as recording:
        net()(torch.randn(3, 4))
        torch.zeros(5).fill_(3.0)
    totals = [row["total"] for row in rows(recording, role="result") if "fill_" in row["op"]]
    assert totals[-1] == 15.0


def test_distributed_tensors_written_in_place_are_seen_as_they_are_then() -> None:
    def write(path: str) -> None:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        with commtrace.record(f"{path}/rank{dist.get_rank()}.json", values="module") as recording:
            x = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
            recording.observe("before", x)
            x.add_(1.0)
            recording.observe("after", x)

    with TemporaryDirectory() as folder:
        run_threads(write, 2, folder)
        table = read_trace(Path(folder) / "rank0.json").tables["fingerprints"]
    totals = dict(zip(table["name"], table["total"], strict=True))
    assert totals == {"before": 2.0, "after": 4.0}


class Written(nn.Module):
    """A module whose layer's output is written to in place, without a version of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return twice the input."""
        x = self.layer(x * 1)
        if self.kind == "list":
            torch._foreach_mul_([x], 2.0)
        elif self.kind == "collective":
            dist.all_reduce(x)
        else:
            work: Any = dist.all_reduce(x, async_op=True)
            x = nn.Identity()(x)  # observed while it is reduced
            work.wait()
        return x


@pytest.mark.parametrize("values", ["module", "op"])
@pytest.mark.parametrize("kind", ["list", "collective", "asynchronous collective"])
def test_a_tensor_that_is_written_to_in_place_has_a_fingerprint_of_its_own(
    kind: str, values: str
) -> None:
    def program() -> None:
        with commtrace.record(values=values) as recording, torch.no_grad():
            Written(kind)(torch.ones(3))
        totals = [(row["module"], row["total"]) for row in rows(recording, role="output")]
        assert (totals[0], totals[-1]) == (("layer", 3.0), ("", 6.0))

    run_threads(program, 2)


def test_a_tensor_that_modules_pass_on_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    num_read = 0

    def counting(*args: Any) -> torch.Tensor:
        nonlocal num_read
        num_read += 1
        return facts_of(*args)

    monkeypatch.setattr("commtrace.recorder.values.observer.facts_of", counting)
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4)))
    with commtrace.record(values="module") as recording, torch.no_grad():
        model(torch.ones(2, 4))
    assert len(rows(recording, role="output")) == 3
    # Two parameters, the input and the output.
    assert num_read == 4


def test_calls_whose_values_are_observed_have_their_times() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        tensor = distribute_tensor(torch.ones(8, 4), mesh, [Shard(0)])
        with commtrace.record(values="op") as recording:
            for _ in range(4):
                assert (tensor.redistribute(placements=[Replicate()]) + 1).shape == (8, 4)
    calls = recording.trace().tables["comm"]
    assert list(calls["kind"]) == ["all_gather"] * 4
    for name in ("issue_ns", "result_used_ns"):
        assert min(calls[name]) > 0, name


def test_a_view_is_not_observed_also_if_its_schema_hides_it() -> None:
    with commtrace.record(values="op") as recording:
        torch.ops.aten._unsafe_view(torch.ones(2, 3).neg().view(3, 2), [6])
    assert [row["op"] for row in rows(recording, role="result")] == [
        "aten.ones.default",
        "aten.neg.default",
    ]


def test_a_copied_view_whose_base_was_written_is_not_observed() -> None:
    with fake_world(4):
        mesh = init_device_mesh("cpu", (4,))
        tensor = distribute_tensor(torch.ones(6, 2), mesh, [Shard(0)])
        with commtrace.record(values="op") as recording:
            tensor[0] = 3.0
        assert tensor.to_local().tolist() == [[3.0, 3.0], [1.0, 1.0]]
    assert rows(recording)


def test_parameters_of_a_second_model_have_one_name() -> None:
    torch.manual_seed(0)
    models = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    with commtrace.record(values="module") as recording:
        models[1](models[0](torch.randn(2, 4))).sum().backward()
        for each in optimizers:
            each.step()
    roles = ("parameter", "local_gradient", "gradient", "updated")
    names = [{each["name"] for each in rows(recording, role=role)} for role in roles]
    assert len(names[0]) == 4
    assert names == [names[0]] * 4
