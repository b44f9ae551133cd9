"""Prefetched and bucketed calls of libraries are attributed to their modules and parameters."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor as theirs
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

import commtrace
from dtensor_core import init_device_mesh
from dtensor_core.testing import fake_world, run_processes, run_threads
from tests.commtrace.recorder import recorded
from tests.commtrace.recorder.recorded import call, calls, on_a_thread_of_the_engine

CPU = torch.device("cpu")


@pytest.fixture
def world() -> Iterator[None]:
    with fake_world(4):
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8, bias=False)
        self.down = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 8, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


def sharded_model(*mesh_shape: int, prefetch: bool = False) -> Model:
    torch.manual_seed(0)
    model = Model()
    names = ("replicate", "shard")[-len(mesh_shape) :]
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if prefetch:
        for layer, following in zip(model.layers[:-1], model.layers[1:], strict=True):
            layer.set_modules_to_forward_prefetch([following])
    return model


def parameters_of(module: str) -> str:
    return "embed.weight" if not module else f"{module}.up.weight,{module}.down.weight"


UNITS = ["", "layers.0", "layers.1", "layers.2"]


@pytest.mark.parametrize("prefetch", [False, True])
def test_communication_of_fsdp_is_attributed_to_its_unit(prefetch: bool) -> None:
    def body() -> list[Any]:
        model = sharded_model(2, prefetch=prefetch)
        with commtrace.record(detail="collective") as recording:
            for _ in range(2):
                model(torch.ones(4, 8)).sum().backward()
        return calls(recording)

    for events in run_threads(body, 2):
        for number in range(2):
            ours = [event for event in events if event.module_call == number]
            found = Counter((event.kind, event.phase, event.module) for event in ours)
            assert found == Counter(
                [
                    *(("all_gather", "forward", unit) for unit in UNITS),
                    # The root keeps its parameters, so it gathers them only once.
                    *(("all_gather", "backward", unit) for unit in UNITS if unit),
                    *(("reduce_scatter", "backward", unit) for unit in UNITS),
                ]
            )
        for event in events:
            assert event.carries == {"all_gather": "parameters"}.get(event.kind, "gradients")
            assert event.parameters == parameters_of(event.module)
            assert event.module_class == ("FSDPBlock" if event.module else "FSDPModel")


def test_a_unit_that_is_gathered_ahead_is_reported_by_the_call_that_it_is_gathered_for() -> None:
    def body() -> list[Any]:
        model = sharded_model(2, prefetch=True)
        with commtrace.record(detail="collective") as recording:
            model.embed.register_forward_hook(lambda *_: model.layers[2].unshard())
            model(torch.ones(4, 8))
        return calls(recording)

    for events in run_threads(body, 2):
        ahead = [event.module for event in events]
        assert ahead[:2] == ["", "layers.2"]
        assert {event.module_call for event in events} == {0}


def test_what_is_gathered_outside_of_the_forward_is_in_no_phase_of_it() -> None:
    def body() -> list[Any]:
        model = sharded_model(2)
        with commtrace.record(detail="collective") as recording:
            ahead = model.layers[1].unshard(async_op=True)
            model(torch.ones(4, 8))
            ahead.wait()
            model.layers[2].unshard()
        return calls(recording)

    for first, *_, last in run_threads(body, 2):
        assert (first.phase, first.carries) == ("other", "parameters")
        assert first.parameters == parameters_of("layers.1")
        assert (last.phase, last.module, last.module_call) == ("other", "layers.2", 1)
        assert last.parameters == parameters_of("layers.2")


def events_of_a_unit_with_sequence_parallel_norms(api: str) -> list[Any]:
    tensor, parallel = import_module(api), import_module(f"{api}.parallel")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8))
    rows = tensor.Shard(0)
    norm = parallel.SequenceParallel(sequence_dim=0)
    linear = parallel.ColwiseParallel(input_layouts=rows, output_layouts=rows)
    parallel.parallelize_module(model, mesh["tp"], {"0": norm, "1": linear, "2": norm, "3": linear})
    fully_shard(model, mesh=mesh["dp"])
    with commtrace.record(detail="collective") as recording:
        model(torch.ones(4, 8)).sum().backward()
    return calls(recording)


@pytest.mark.parametrize("api", ["torch.distributed.tensor", "dtensor_core"])
def test_what_dtensor_reduces_for_fsdp_is_one_parameter_of_the_unit(api: str) -> None:
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    for events in run_processes(
        events_of_a_unit_with_sequence_parallel_norms, 4, api, timeout_s=120
    ):
        carrying = [event for event in events if event.carries == "gradients"]
        of_norms = [event for event in carrying if event.kind == "all_reduce"]
        assert [event.parameters for event in of_norms] == names
        assert [event.module for event in of_norms] == ["0", "0", "2", "2"]
        assert all(event.source_spec and event.payload_bytes == 32 for event in of_norms)
        (unit,) = [event.parameters for event in carrying if event.kind == "reduce_scatter"]
        assert unit.split(",") == [f"{n}.{name}" for n in range(4) for name in ("weight", "bias")]


def test_what_a_hook_sends_of_a_reduced_gradient_is_not_that_of_the_unit() -> None:
    def body() -> list[Any]:
        model = sharded_model(2)
        for each in model.layers[0].parameters():
            each.register_post_accumulate_grad_hook(
                lambda owner: dist.all_reduce(owner.grad.to_local().norm())
            )
        with commtrace.record(detail="collective") as recording:
            model(torch.ones(4, 8)).sum().backward()
        return calls(recording)

    for events in run_threads(body, 2):
        own = [event for event in events if event.kind == "all_reduce"]
        assert [(event.carries, event.parameters) for event in own] == [("", "")] * 2


def test_replicas_of_a_sharded_model_reduce_the_gradients_of_the_same_units() -> None:
    def body() -> list[Any]:
        model = sharded_model(2, 2)
        with commtrace.record(detail="collective") as recording:
            model(torch.ones(4, 8)).sum().backward()
        return calls(recording)

    for events in run_threads(body, 4):
        reduced = [event for event in events if event.kind == "all_reduce"]
        assert sorted(event.module for event in reduced) == UNITS
        assert {(event.phase, event.carries) for event in reduced} == {("backward", "gradients")}


def test_clipping_the_gradients_of_fsdp_is_neither_forward_nor_backward() -> None:
    def body() -> Any:
        model = sharded_model(2)
        model(torch.ones(4, 8)).sum().backward()
        with commtrace.record(detail="collective") as recording:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return calls(recording)

    for events in run_threads(body, 2):
        assert events
        assert {(event.phase, event.module, event.carries) for event in events} == {
            ("other", "", "")
        }


def flat_units() -> list[Any]:
    policy = ModuleWrapPolicy({Block})
    model = FullyShardedDataParallel(Model(), auto_wrap_policy=policy, device_id=CPU)
    with commtrace.record(detail="collective") as recording:
        model(torch.ones(4, 8)).sum().backward()
    return calls(recording)


def test_so_it_is_for_the_older_fsdp() -> None:
    units = ["", *(f"layers.{i}" for i in range(3))]
    for events in run_processes(flat_units, 2):
        found = Counter((event.carries, event.phase, event.module) for event in events)
        assert found == Counter(
            [
                *(("parameters", "forward", unit) for unit in units),
                *(("parameters", "backward", unit) for unit in units[1:]),
                *(("gradients", "backward", unit) for unit in units),
            ]
        )
        for event in events:
            assert event.parameters == parameters_of(event.module)


def buckets() -> list[list[tuple[str, str, int]]]:
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    model[2].weight.requires_grad_(False)
    wrapped = DistributedDataParallel(model, bucket_cap_mb=0.02)
    rows = []
    for _ in range(4):
        with commtrace.record(detail="collective") as recording:
            wrapped(torch.ones(2, 64)).sum().backward()
        events = [event for event in calls(recording) if event.phase == "backward"]
        rows.append([(each.carries, each.parameters, each.payload_bytes) for each in events])
    return rows


def test_a_bucket_of_ddp_is_named_by_its_parameters() -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    numels = {name: each.numel() for name, each in model.named_parameters() if name != "2.weight"}
    for first, _, *rebuilt in run_processes(buckets, 2):
        assert first == [("gradients", ",".join(numels), 4 * sum(numels.values()))]
        for rows in rebuilt:
            assert len(rows) > 1
            names = [name for _, parameters, _ in rows for name in parameters.split(",")]
            assert sorted(names) == sorted(numels)
            for carries, parameters, payload in rows:
                assert carries == "gradients"
                assert payload == 4 * sum(numels[name] for name in parameters.split(","))


class Reversed(nn.Module):
    """Layers that are registered in the reverse order of their use."""

    def __init__(self, size: int) -> None:
        super().__init__()
        for name in "dcba":
            setattr(self, name, nn.Linear(size, size, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in "abcd":
            x = torch.relu(getattr(self, name)(x))
        return x


def buckets_sent_together(find_unused: bool) -> list[list[str]]:
    """Names of the buckets of some passes, and of each bucket as a hook is given it."""
    options: dict[str, Any] = {
        "find_unused_parameters": find_unused, "bucket_cap_mb": 0.01, "static_graph": False,
    }  # fmt: skip
    wrapped = DistributedDataParallel(Reversed(64), **options)
    with commtrace.record(detail="collective") as recording:
        for _ in range(3):
            wrapped(torch.ones(2, 64)).sum().backward()
    found = [each.parameters for each in calls(recording) if each.carries == "gradients"]
    names = {}
    seen: list[str] = []

    def noting(state: None, bucket: Any) -> Any:
        seen.append(",".join(names[id(each)] for each in bucket.parameters()))
        return fp16_compress_hook(state, bucket)  # type: ignore[arg-type]

    noting.__annotations__.clear()
    hooked = DistributedDataParallel(Reversed(64), **options)
    names |= {id(each): name for name, each in hooked.module.named_parameters()}
    hooked.register_comm_hook(None, noting)
    for _ in range(3):
        hooked(torch.ones(2, 64)).sum().backward()
    return [found, seen]


@pytest.mark.parametrize("find_unused", [True, False])
def test_buckets_that_one_gradient_completes_have_their_own_names(find_unused: bool) -> None:
    for found, seen in run_processes(buckets_sent_together, 2, find_unused):
        assert len(found) >= 8
        assert found == seen


def halved(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / 2)


# DistributedDataParallel requires its own class there, or nothing; a string annotation fails.
halved.__annotations__.clear()


def buckets_of_hooks() -> list[list[tuple[str, str, str, str, int]]]:
    hooks: list[tuple[Any, Any]] = [
        (None, fp16_compress_hook),
        (None, halved),
        (PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1), powerSGD_hook),
    ]
    rows = []
    for state, hook in hooks:
        wrapped = DistributedDataParallel(Model())
        wrapped.register_comm_hook(state, hook)
        with commtrace.record(detail="collective") as recording:
            for _ in range(3):
                wrapped(torch.ones(2, 8)).sum().backward()
        found = [each for each in calls(recording) if each.phase == "backward"]
        rows.append(
            [
                (each.carries, each.parameters, each.module, each.module_class, each.module_call)
                for each in found
            ]
        )
        assert {each.source_function for each in found} <= {"buckets_of_hooks", "halved"}
        assert {each.phase for each in calls(recording)} == {"backward"} | (
            {"forward"} if len(found) < len(calls(recording)) else set()
        )
    return rows


def test_what_a_hook_of_ddp_sends_is_the_bucket_that_it_was_given() -> None:
    names = sorted(name for name, _ in Model().named_parameters())
    for compressed, own, factored in run_processes(buckets_of_hooks, 2):
        for rows in (compressed, own):
            assert [row[4] for row in rows] == [0, 1, 2]
        # A bucket is reduced whole at first, then in two factors. The second is sent on a thread of
        # the backend, or immediately if the first is already complete.
        assert [row[4] for row in factored] == [0, 1, 2, 2, 2]
        for rows in (compressed, own, factored):
            assert {row[0] for row in rows} == {"gradients"}
            assert {row[2:4] for row in rows} == {("", "DistributedDataParallel")}
        for _, parameters, *_ in (*compressed, *own, *factored[:3]):
            assert sorted(parameters.split(",")) == names


def buckets_sent_by_the_engine(detail: str) -> list[tuple[str, ...]]:
    wrapped = DistributedDataParallel(Model())
    with commtrace.record(detail=detail) as recording, recording.region("here"):
        on_a_thread_of_the_engine(wrapped(torch.ones(2, 8)).sum().backward)
    (found,) = [each for each in calls(recording) if each.carries == "gradients"]
    return [found.phase, found.module_class, found.region, found.source_file, found.parameters]


@pytest.mark.parametrize("detail", ["collective", "op"])
def test_a_bucket_may_be_sent_by_a_thread_that_has_no_frame_of_python(detail: str) -> None:
    names = ",".join(name for name, _ in Model().named_parameters())
    for found in run_processes(buckets_sent_by_the_engine, 2, detail):
        assert found[:3] == ["backward", "DistributedDataParallel", "here"]
        assert found[3:] == [recorded.__file__, names]


def shadows_of_a_join() -> list[tuple[str, str]]:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        from torch.distributed.optim import ZeroRedundancyOptimizer
    wrapped = DistributedDataParallel(Model(), bucket_cap_mb=0.0001)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=0.1)
    rank = dist.get_rank()
    with commtrace.record(detail="collective") as recording:
        with wrapped.join():
            for _ in range(1 + rank):
                wrapped(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.consolidate_state_dict()
    found = [each for each in calls(recording) if each.carries]
    return [(each.phase, each.carries) for each in found]


def test_a_rank_that_has_joined_reduces_gradients_too_and_an_optimizer_sends_parameters() -> None:
    first, second = run_processes(shadows_of_a_join, 2)
    assert Counter(carries for _, carries in first) == Counter(carries for _, carries in second)
    assert {phase for phase, carries in first if carries == "gradients"} == {"backward", "other"}
    assert {phase for phase, carries in second if carries == "gradients"} == {"backward"}
    for rows in (first, second):
        assert ("optimizer", "parameters") in rows
        assert ("other", "objects") in rows


class Around(nn.Module):
    """A model that contains a wrapped model."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.inner = DistributedDataParallel(Model(), bucket_cap_mb=0.0001, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def buckets_of_an_inner_model(options: dict[str, bool]) -> list[set[tuple[str, str, str, str]]]:
    model, rows = Around(**options), []
    for _ in range(4):
        with commtrace.record(detail="collective") as recording:
            model(torch.ones(2, 8)).sum().backward()
        events = [event for event in calls(recording) if event.dtype == "float32"]
        rows.append(
            {(each.phase, each.module, each.module_class, each.parameters) for each in events}
        )
    return rows


@pytest.mark.parametrize("option", ["", "find_unused_parameters"])
def test_buckets_of_a_wrapped_part_of_a_model_are_attributed_to_it(option: str) -> None:
    names = [name for name, _ in Model().named_parameters()]
    for rows in run_processes(buckets_of_an_inner_model, 2, {option: True} if option else {}):
        assert {row[:3] for found in rows for row in found} == {
            ("backward", "inner", "DistributedDataParallel")
        }
        assert sorted(",".join(row[3] for row in rows[-1]).split(",")) == sorted(names)
        assert len(rows[-1]) > 1


def buckets_put_off() -> set[tuple[str, str, str, str]]:
    wrapped = DistributedDataParallel(Model(), static_graph=True)
    with commtrace.record(detail="collective") as recording:
        wrapped(torch.ones(2, 8)).sum().backward()
    return {(each.phase, each.module, each.module_class, each.carries) for each in calls(recording)}


def test_buckets_delayed_to_the_end_of_a_backward_pass_are_attributed_too() -> None:
    for rows in run_processes(buckets_put_off, 2):
        assert rows == {
            ("backward", "", "DistributedDataParallel", carried)
            for carried in ("gradients", "flags")
        }


def flags_of_unused_parameters() -> set[tuple[str, str, str]]:
    wrapped = DistributedDataParallel(Model(), find_unused_parameters=True)
    with commtrace.record(detail="collective") as recording:
        for _ in range(2):
            wrapped(torch.ones(2, 8)).sum().backward()
    return {(each.dtype, each.carries, each.parameters) for each in calls(recording)}


def test_flags_of_unused_parameters_are_no_gradient() -> None:
    for rows in run_processes(flags_of_unused_parameters, 2):
        assert ("int32", "flags", "") in rows
        assert {row[1] for row in rows if row[0] == "float32"} == {"gradients"}


def read_in_a_hook() -> list[int]:
    wrapped = DistributedDataParallel(nn.Linear(4, 4))
    seen = []
    with commtrace.record(detail="collective") as recording:
        wrapped.module.weight.register_hook(lambda _: seen.append(recording.total()))
        wrapped(torch.ones(2, 4)).sum().backward()
        wrapped(torch.ones(2, 4)).sum().backward()
    return seen


def test_a_recording_can_be_read_in_the_middle_of_a_backward_pass() -> None:
    for seen in run_processes(read_in_a_hook, 2, timeout_s=60):
        assert len(seen) == 2
        assert seen[0] < seen[1]


@pytest.mark.parametrize(
    "send",
    [
        lambda: dist.all_gather_object([None] * 4, {"a": 1}),
        lambda: dist.gather_object({"a": 1}, [None] * 4),
        lambda: dist.broadcast_object_list([{"a": 1}]),
        lambda: dist.scatter_object_list([None], [1, 2, 3, 4]),
        lambda: dist.send_object_list([1], 1),
    ],
)
def test_collectives_of_objects_say_so(send: Any, world: None) -> None:
    with commtrace.record(detail="collective") as recording:
        send()
        dist.all_reduce(torch.ones(2))
    *objects, last = calls(recording)
    assert objects
    assert {event.carries for event in objects} == {"objects"}
    assert last.carries == ""


def test_the_full_stack_is_kept_if_requested(world: None) -> None:
    def outer() -> None:
        inner()

    def inner() -> None:
        dist.all_reduce(torch.ones(2))

    with commtrace.record(detail="collective") as plain:
        outer()
    with commtrace.record(stacks=True) as recording:
        outer()
    assert call(plain).stack == ""
    *_, third, second, wrapper, first = call(recording).stack.split("\n")
    assert third.endswith(" outer")
    assert second.endswith(f"{__file__}:{inner.__code__.co_firstlineno + 1} inner")
    assert "torch/distributed" in wrapper
    assert first.endswith(" all_reduce")


def torch_dtensor(rows: int, placement: Any) -> Any:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    return theirs.distribute_tensor(torch.ones(rows, 8), mesh, [placement])


@pytest.mark.parametrize("detail", ["op", "collective"])
def test_torchs_dtensor_reports_operator_argument_and_layouts(detail: str, world: None) -> None:
    left, right = torch_dtensor(8, theirs.Replicate()), torch_dtensor(8, theirs.Shard(0))
    with commtrace.record(detail=detail) as recording:
        torch.nn.functional.softmax(right, dim=0)
        torch.add(left, right.redistribute(placements=[theirs.Replicate()]))
    softmax, redistributed = calls(recording)
    assert (softmax.op, softmax.argument) == ("aten._softmax.default", "self")
    assert softmax.source_spec == "f32[8,8] tp:S(0)"
    assert softmax.target_spec.startswith("f32[8,8] tp:")
    assert softmax.reason == (
        f"aten._softmax.default needs self f32[8,8] tp:S(0) -> {softmax.target_spec}"
    )
    assert (redistributed.op, redistributed.argument) == ("redistribute", "")
    assert redistributed.reason == "redistribute f32[8,8] tp:S(0) -> f32[8,8] tp:R"
    assert redistributed.planned_bytes == -1


def test_torchs_dtensor_reports_them_in_the_backward_pass(world: None) -> None:
    weight = torch_dtensor(8, theirs.Shard(0)).requires_grad_()
    with commtrace.record(detail="collective") as recording:
        gathered = weight.redistribute(placements=[theirs.Replicate()])
        gathered.to_local(grad_placements=[theirs.Partial()]).sum().backward()
    _, scattered = calls(recording)
    assert (scattered.kind, scattered.phase) == ("reduce_scatter", "backward")
    assert scattered.reason == "redistribute f32[8,8] tp:P(sum) -> f32[8,8] tp:S(0)"


def pipelined(schedule: str) -> list[Any]:
    from torch.distributed.pipelining import (
        PipelineStage,
        Schedule1F1B,
        ScheduleGPipe,
        ScheduleInterleaved1F1B,
    )

    rank, is_interleaved = dist.get_rank(), schedule == "Interleaved1F1B"
    num_stages = 4 if is_interleaved else 2
    stages = [
        PipelineStage(nn.Sequential(Block(), Block()), number, num_stages, CPU)
        for number in range(rank, num_stages, 2)
    ]
    loss = nn.functional.mse_loss
    made: Any = (
        ScheduleInterleaved1F1B(stages, 4, loss_fn=loss)
        if is_interleaved
        else {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}[schedule](stages[0], 4, loss_fn=loss)
    )
    given = (torch.ones(8, 8),) if rank == 0 else ()
    target = {"target": torch.ones(8, 8)} if rank == 1 else {}
    with commtrace.record(detail="collective") as recording:
        for _ in range(2):
            made.step(*given, **target)
    return calls(recording)


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B"])
def test_what_stages_of_a_pipeline_send_has_their_module_and_its_direction(schedule: str) -> None:
    num_stages = 4 if schedule == "Interleaved1F1B" else 2
    num = 2 * 4  # steps and microbatches
    for rank, events in enumerate(run_processes(pipelined, 2, schedule)):
        own = range(rank, num_stages, 2)
        modules = dict(zip(own, ["", f"stage{own[-1]}"], strict=False))
        wanted: Counter[tuple[str, str, str]] = Counter()
        for stage in own:
            module = modules[stage]
            if stage > 0:
                wanted["forward", "recv", module] += num
                wanted["backward", "send", module] += num
            if stage < num_stages - 1:
                wanted["forward", "send", module] += num
                wanted["backward", "recv", module] += num
        found = [event for event in events if event.carries == "activations"]
        assert Counter((each.phase, each.kind, each.module) for each in found) == wanted
        assert {each.module_class for each in found} == {"Sequential"}
        assert {each.module_call >= 0 for each in found} == {True}
        rest = {each.phase for each in events if each.carries != "activations"}
        assert rest <= {"other"}  # shapes are agreed on


class TwoModels(nn.Module):
    """Two wrapped parts; neither is the outermost module."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(DistributedDataParallel(Model()) for _ in range(2))
        for part in self.parts:
            state = PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.1)
            part.register_comm_hook(state, powerSGD_hook)  # type: ignore[operator]


def factors_of_two_models() -> list[tuple[str, ...]]:
    model = TwoModels()
    rows = []
    with commtrace.record(detail="collective") as recording:
        for _ in range(4):
            for part in model.parts:
                part(torch.ones(2, 8)).sum().backward()
    for each in calls(recording):
        if each.kind == "all_reduce":
            rows.append((each.phase, each.module_class, each.carries, each.module))
    return rows


def test_factors_of_a_compressed_bucket_belong_to_the_model_whose_hook_made_them() -> None:
    for rows in run_processes(factors_of_two_models, 2):
        assert {row[:3] for row in rows} == {("backward", "DistributedDataParallel", "gradients")}
        assert len({row[3] for row in rows}) == 2  # each part is an outermost module of its own


def flags_of(find_unused: bool, uses_all: bool) -> set[tuple[str, str]]:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.other(self.used(x)) if uses_all else self.used(x)

    wrapped = DistributedDataParallel(Part(), find_unused_parameters=find_unused)
    with commtrace.record(detail="collective") as recording:
        for _ in range(3):
            wrapped(torch.ones(2, 8)).sum().backward()
    return {(each.carries, each.reason) for each in calls(recording) if each.carries == "flags"}


@pytest.mark.parametrize("uses_all", [True, False])
def test_flags_say_what_is_logged_of_unused_parameters(uses_all: bool) -> None:
    from commtrace.schema import ALL_USED, SOME_UNUSED

    for found in run_processes(flags_of, 2, True, uses_all):
        assert found == {("flags", ALL_USED if uses_all else SOME_UNUSED)}
