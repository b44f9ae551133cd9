"""Every call is recorded once, whatever issues it; afterwards the dispatcher is restored."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed._symmetric_memory  # registers operators
import torch.distributed.tensor as theirs
import torch.distributed.tensor.parallel as their_parallel
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import commtrace
import dtensor_core as ours
from commtrace.recorder import RECORDER, bridge
from commtrace.recorder.interception.kernels import NUM_ISSUING_FRAMES
from commtrace.recorder.interception.pending import Completion, PendingCalls, await_callbacks
from commtrace.recorder.interception.signatures import SIGNATURES, WAIT, WAIT_FOR_ALL
from dtensor_core import init_device_mesh, observe, parallel
from dtensor_core.experimental import set_link
from dtensor_core.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from dtensor_core.testing import fake_world, run_processes, run_threads
from tests.commtrace.recorder.recorded import call, calls, unplaced_call
from tests.dtensor_core.models.small_models import MLPModule

functional = torch.ops._c10d_functional


@pytest.fixture
def world() -> Iterator[None]:
    with fake_world(4):
        yield


def dispatch_tables() -> dict[str, str]:
    """Dispatch tables of all operators that this build has kernels for."""
    names = [name for name in SIGNATURES if torch._C._dispatch_has_kernel(name)]
    waits = [name for name in (WAIT, WAIT_FOR_ALL) if torch._C._dispatch_has_kernel(name)]
    return {name: torch._C._dispatch_dump_table(name) for name in [*names, *waits]}


def test_the_dispatcher_is_changed_while_recording_only(world: None) -> None:
    before, wait, module_call = dispatch_tables(), vars(dist.Work)["wait"], nn.Module.__call__
    with commtrace.record():
        changed = {name for name, table in dispatch_tables().items() if before[name] != table}
        assert changed == before.keys() - {WAIT, WAIT_FOR_ALL}  # there is nothing to wait for
        assert vars(dist.Work)["wait"] is not wait
        assert nn.Module.__call__ is not module_call
    assert dispatch_tables() == before
    assert vars(dist.Work)["wait"] is wait
    assert nn.Module.__call__ is module_call


def test_a_wait_that_another_tool_replaced_meanwhile_stays(
    world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist.Work, "wait", wait := vars(dist.Work)["wait"])
    with commtrace.record():
        recording = vars(dist.Work)["wait"]

        def theirs(*args: Any) -> Any:
            return recording(*args)

        dist.Work.wait = theirs  # type: ignore[method-assign]
    assert recording is not wait
    assert vars(dist.Work)["wait"] is theirs
    with commtrace.record() as second:
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert len(calls(second)) == 1


def test_nothing_is_seen_after_a_recording(world: None) -> None:
    with commtrace.record() as recording:
        pass
    dist.all_reduce(torch.ones(2))
    assert recording.total() == 0


def functional_all_reduce(tensor: torch.Tensor) -> torch.Tensor:
    return functional.wait_tensor(functional.all_reduce(tensor, "max", "0"))


FUNCTIONAL = [
    (functional.all_reduce, ("sum", "0"), "all_reduce"),
    (functional.all_reduce_, ("sum", "0"), "all_reduce"),
    (functional.all_gather_into_tensor, (4, "0"), "all_gather"),
    (functional.reduce_scatter_tensor, ("sum", 4, "0"), "reduce_scatter"),
    (functional.all_to_all_single, ([2] * 4, [2] * 4, "0"), "all_to_all"),
    (functional.broadcast, (2, "0"), "broadcast"),
    (functional.broadcast_, (2, "0"), "broadcast"),
    (functional.isend, (2, 7, "0"), "send"),
    (functional.irecv, (2, 7, "0"), "recv"),
]
"""Operator, arguments other than a tensor of 8 numbers, and kind."""


@pytest.mark.parametrize(("functional_op", "args", "kind"), FUNCTIONAL)
@pytest.mark.parametrize("tensors", ["real", "meta", "fake"])
def test_a_functional_collective_is_one_call(
    functional_op: Any, args: tuple[Any, ...], kind: str, tensors: str, world: None
) -> None:
    device = "meta" if tensors == "meta" else "cpu"
    with (
        FakeTensorMode() if tensors == "fake" else torch.no_grad(),
        commtrace.record() as recording,
    ):
        functional.wait_tensor(functional_op(torch.ones(8, device=device), *args))
    event = call(recording)
    assert (event.kind, event.is_async) == (kind, True)
    assert event.payload_bytes == (128 if kind == "all_gather" else 32)
    assert event.reduce_op == ("sum" if "reduce" in kind else "")
    assert event.root == (2 if kind == "broadcast" else -1)
    assert event.peer == (2 if kind in ("send", "recv") else -1)
    assert event.tag == (7 if kind in ("send", "recv") else -1)


TIMES = (
    *("issue_ns", "call_ns", "blocked_ns", "complete_ns", "data_ready_ns", "result_used_ns"),
    "run_delay_ns",
)


@pytest.mark.parametrize(("functional_op", "args", "kind"), FUNCTIONAL)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_a_functional_collective_is_recorded_alike_by_the_long_way_and_the_short_one(
    functional_op: Any,
    args: tuple[Any, ...],
    kind: str,
    dtype: torch.dtype,
    world: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The short path is used from the second call on, once the issued operator is known."""
    rows = []
    for ways in (["long", "short"], ["long", "long"]):
        if ways[1] == "long":
            monkeypatch.setattr(RECORDER, "runs_in_cpp", lambda *_: False)
        with commtrace.record() as recording:
            for _ in ways:
                functional.wait_tensor(functional_op(torch.ones(8, dtype=dtype), *args))
        rows.append([each._replace(**dict.fromkeys(TIMES, 0)) for each in calls(recording)])
    assert rows[0] == rows[1]
    assert [row.kind for row in rows[0]] == [kind, kind]


def test_each_result_without_elements_is_waited_for_by_itself() -> None:
    def rank() -> None:
        results = [functional.all_reduce(torch.ones(0), "sum", "0") for _ in range(3)]
        for each in results:
            functional.wait_tensor(each)

    with commtrace.record() as recording:
        run_threads(rank, 2)
    assert len(calls(recording)) == 6
    assert all(each.blocked_ns >= 0 for each in calls(recording))
    assert all(each.complete_ns >= each.issue_ns for each in calls(recording))


def test_waiting_for_what_is_no_result_raises_the_same() -> None:
    def rank() -> str:
        pending = functional.all_reduce(torch.ones(2), "sum", "0")
        with pytest.raises(NotImplementedError) as error:
            functional.wait_tensor(torch.ones(2).to_sparse())
        functional.wait_tensor(pending)
        return str(error.value)

    expected = run_threads(rank, 2)
    with commtrace.record():
        assert run_threads(rank, 2) == expected


def test_what_a_functional_collective_runs_finds_the_dispatcher_as_ever(world: None) -> None:
    """This includes a factory that raises: later factories still use the right dispatch keys."""

    def keys_of_the_thread() -> tuple[str, str]:
        return (
            str(torch._C._dispatch_tls_local_include_set()),
            str(torch._C._dispatch_tls_local_exclude_set()),
        )

    with commtrace.record() as recording:
        before = keys_of_the_thread()
        for _ in range(2):
            functional.all_reduce(torch.ones(8), "sum", "0")
        with pytest.raises(RuntimeError, match="Unrecognized reduce_op"):
            functional.all_reduce(torch.ones(8), "no such reduction", "0")
        assert torch.empty(2, device="meta").is_meta
        assert keys_of_the_thread() == before
    assert recording.total() == 3


@pytest.mark.skipif(
    not torch._C._dispatch_has_kernel(WAIT_FOR_ALL), reason="torch 2.15 added wait_tensors"
)
def test_a_wait_for_several_results_is_recorded_for_their_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[Any] = []
    waited = PendingCalls.waited_for_result

    def noted(self: PendingCalls, call: Any, begin: int) -> None:
        waits.append(call)
        waited(self, call, begin)

    def body() -> None:
        outs = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", "0")
        assert [each.tolist() for each in functional.wait_tensors(outs)] == [[2, 2], [2, 2, 2]]

    monkeypatch.setattr(PendingCalls, "waited_for_result", noted)
    with commtrace.record():
        run_threads(body, 2)
    assert Counter(map(id, waits)) == {id(call): 2 for call in waits}
    assert len(waits) == 4


@pytest.mark.parametrize("tensors", ["real", "meta", "fake"])
def test_coalesced_functional_collectives_are_one_call(tensors: str, world: None) -> None:
    device = "meta" if tensors == "meta" else "cpu"
    with (
        FakeTensorMode() if tensors == "fake" else torch.no_grad(),
        commtrace.record() as recording,
    ):
        inputs = [torch.ones(8, device=device), torch.ones(2, device=device)]
        for out in functional.all_reduce_coalesced(inputs, "sum", "0"):
            functional.wait_tensor(out)
        for out in functional.all_gather_into_tensor_coalesced(inputs, 4, "0"):
            functional.wait_tensor(out)
    reduce, gather = calls(recording)
    assert (reduce.input_shapes, reduce.payload_bytes) == ("[8];[2]", 40)
    assert (gather.output_shapes, gather.payload_bytes) == ("[32];[8]", 160)


def test_functional_collectives_that_write_to_a_tensor_are_seen(world: None) -> None:
    with commtrace.record() as recording:
        for out in (
            functional.all_gather_into_tensor_out(torch.ones(2), 4, "0", out=torch.empty(8)),
            functional.reduce_scatter_tensor_out(torch.ones(8), "sum", 4, "0", out=torch.empty(2)),
        ):
            functional.wait_tensor(out)
    assert recording.counts() == {"all_gather": 1, "reduce_scatter": 1}


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


autograd, symmetric = torch.ops._c10d_functional_autograd, torch.ops.symm_mem


@pytest.mark.parametrize(
    ("run", "kind", "payload_bytes"),
    [
        (lambda: autograd.all_gather_into_tensor(meta(8), 4, "0"), "all_gather", 128),
        (lambda: autograd.reduce_scatter_tensor(meta(8), "sum", 4, "0"), "reduce_scatter", 32),
        (lambda: torch.ops._dtensor.shard_dim_alltoall(meta(8, 4), 0, 1, "0"), "all_to_all", 128),
        (lambda: symmetric.one_shot_all_reduce(meta(8), "sum", "0"), "all_reduce", 32),
        (
            lambda: symmetric.one_shot_all_reduce_copy(meta(8), meta(8), "sum", "0"),
            "all_reduce",
            32,
        ),
        (lambda: symmetric._low_contention_all_gather(meta(8), "0"), "all_gather", 128),
        (
            lambda: symmetric._low_contention_reduce_scatter(meta(8), "sum", "0"),
            "reduce_scatter",
            32,
        ),
        # Fused with a product, they communicate by a functional collective: still one call.
        (
            lambda: symmetric.fused_all_gather_matmul(meta(4, 8), [meta(8, 2)], 0, "0"),
            "all_gather",
            512,
        ),
        (
            lambda: symmetric.fused_matmul_reduce_scatter(meta(4, 8), meta(8, 2), "sum", 0, "0"),
            "reduce_scatter",
            32,
        ),
    ],
)
def test_collectives_of_other_namespaces_are_one_call(
    run: Any, kind: str, payload_bytes: int, world: None
) -> None:
    with commtrace.record() as recording:
        run()
    event = call(recording)
    assert (event.kind, event.payload_bytes) == (kind, payload_bytes)
    # They are those of a fake group.
    assert (event.blocked_ns, event.complete_ns) == (-1, -1)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_transfers_of_a_functional_batch_are_seen_each(device: str, world: None) -> None:
    tensors = [torch.ones(4, device=device), torch.ones(2, device=device)]
    with commtrace.record() as recording:
        functional.batch_p2p_ops(["isend", "irecv"], [1, 2], [5, 6], tensors, "0")
    found = [(each.kind, each.peer, each.tag, each.payload_bytes) for each in calls(recording)]
    assert found == [("send", 1, 5, 16), ("recv", 2, 6, 8)]


@pytest.mark.parametrize("detail", ["op", "collective"])
@pytest.mark.parametrize("tensors", ["meta", "fake"])
@pytest.mark.parametrize("api", [ours, theirs])
def test_a_tensor_parallel_step_without_data_communicates_as_with_it(
    api: Any, tensors: str, detail: str, world: None
) -> None:
    styles = parallel if api is ours else their_parallel
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    with FakeTensorMode() if tensors == "fake" else torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        plan: Any = {"0": styles.ColwiseParallel(), "2": styles.RowwiseParallel()}
        styles.parallelize_module(model, mesh, plan)
        with commtrace.record(detail=detail) as recording:
            model(torch.ones(4, 8, requires_grad=True)).sum().backward()
    found = [(each.phase, each.module, each.kind, each.payload_bytes) for each in calls(recording)]
    assert found == [("forward", "2", "all_reduce", 128), ("backward", "0", "all_reduce", 128)]


def test_python_collectives_on_fake_and_meta_tensors_are_seen(world: None) -> None:
    with commtrace.record() as recording:
        dist.all_reduce(torch.ones(8, device="meta"))
        with FakeTensorMode():
            dist.all_reduce(torch.ones(8))
    assert [event.payload_bytes for event in calls(recording)] == [32, 32]


def test_calls_in_inference_mode_are_seen(world: None) -> None:
    with commtrace.record() as recording, torch.inference_mode():
        dist.all_reduce(torch.ones(2))
        functional_all_reduce(torch.ones(2))
    assert recording.counts() == {"all_reduce": 2}


def test_calls_of_other_threads_are_seen_with_their_thread(world: None) -> None:
    with commtrace.record() as recording:
        threads = [threading.Thread(target=dist.all_reduce, args=(torch.ones(2),)) for _ in "ab"]
        for thread in threads:
            thread.start()
            thread.join()
        dist.barrier()
    events = calls(recording)
    assert [event.kind for event in events] == ["all_reduce", "all_reduce", "barrier"]
    assert events[0].thread != events[2].thread == threading.get_native_id()


def test_a_compiled_function_is_seen_when_it_runs_not_when_it_is_compiled(world: None) -> None:
    def step(tensor: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(tensor, "sum", [0, 1, 2, 3]) + 1

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    with commtrace.record(detail="collective") as recording:
        for _ in range(3):
            compiled(torch.ones(4))
    assert recording.counts() == {"all_reduce": 3}


def test_recording_operators_leaves_compiled_functions_compiled(world: None) -> None:
    seen = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.append(graph)
        return graph

    compiled = torch.compile(lambda tensor: tensor.sin().cos(), backend=backend)
    with commtrace.record() as recording:
        compiled(torch.ones(4))
        compiled(torch.ones(4))
    assert len(seen) == 1
    assert recording.total() == 0
    torch._dynamo.reset()


def test_object_collectives_are_the_calls_that_they_are_made_of(world: None) -> None:
    with commtrace.record() as recording:
        dist.broadcast_object_list([{"a": 1}], src=0)
    assert recording.counts() == {"broadcast": 2}  # the size, then the bytes


def fail_in_the_backend() -> tuple[str, str, list[tuple[int, int]]]:
    """Errors of gloo without and with a recording, and the recorded rows."""

    def attempt() -> str:
        with pytest.raises(RuntimeError) as error:
            dist.all_gather([torch.ones(2), torch.ones(3)], torch.ones(2))
        return str(error.value)

    plain = attempt()
    with commtrace.record() as recording:
        recorded = attempt()
    return plain, recorded, [(event.call_ns, event.complete_ns) for event in calls(recording)]


def test_a_call_that_raises_raises_the_same_and_is_recorded_without_an_end() -> None:
    for plain, recorded, ((call_ns, complete_ns),) in run_processes(fail_in_the_backend, 2):
        assert recorded == plain
        assert call_ns > 0
        assert complete_ns == -1


def test_arguments_that_cannot_be_read_cost_the_call_not_the_program(
    world: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no idea")

    recording = commtrace.record()
    recording.__enter__()
    monkeypatch.setattr(RECORDER, "_request", fail)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    with pytest.warns(RuntimeWarning, match="1 failures while recording.*ValueError: no idea"):
        recording.__exit__(None, None, None)
    assert recording.total() == 0


# The following tests need ranks that communicate.


def reducer_of_ddp() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01)
    for _ in range(2):  # buckets are rebuilt after the first step, which takes a broadcast
        wrapped(torch.ones(2, 64)).sum().backward()
    with commtrace.record() as recording:
        wrapped(torch.ones(2, 64)).sum().backward()
    events = calls(recording)
    return (
        [event.kind for event in events],
        sum(event.payload_bytes for event in events),
        {(event.phase, event.module, event.module_class) for event in events},
        all(event.complete_ns >= event.issue_ns for event in events),
    )


def test_the_buckets_of_ddp_are_seen_with_all_bytes_of_the_gradients() -> None:
    for kinds, payload, where, is_complete in run_processes(reducer_of_ddp, 2):
        assert len(kinds) >= 2
        assert set(kinds) == {"all_reduce"}
        assert payload == 2 * (64 * 64 + 64) * 4
        assert where == {("backward", "", "DistributedDataParallel")}
        assert is_complete


def object_gather() -> list[Any]:
    with commtrace.record() as recording:
        gathered: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, {"rank": dist.get_rank()})
    return [gathered, [(event.kind, event.payload_bytes) for event in calls(recording)]]


def test_a_gather_of_objects_is_two_gathers() -> None:
    for gathered, kinds in run_processes(object_gather, 2):
        assert gathered == [{"rank": 0}, {"rank": 1}]
        assert kinds[0] == ("all_gather", 2 * 8)  # one int64 per size
        assert kinds[1][0] == "all_gather"
        assert kinds[1][1] >= 2 * len(pickle.dumps({"rank": 0}))


def wait_for_a_late_rank(late_s: float) -> tuple[Any, ...]:
    """Rows of rank 0 for calls that rank 1 makes `late_s` later, while another thread counts."""
    rank, tensor = dist.get_rank(), torch.ones(4)
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.01):
            ticks.append(time.perf_counter())

    def dist_sync() -> None:
        dist.all_reduce(tensor)

    def dist_async() -> None:
        dist.all_reduce(tensor, async_op=True).wait()  # type: ignore[union-attr]

    def functional_wait() -> None:
        functional_all_reduce(tensor)

    dist.barrier()
    ticker = threading.Thread(target=tick)
    ticker.start()
    most_ticks = []
    with commtrace.record() as recording:
        for way in (dist_sync, dist_async, functional_wait, dist.barrier, dist.monitored_barrier):
            time.sleep(late_s * rank)
            begin = time.perf_counter()
            way()
            end = time.perf_counter()
            most_ticks.append(sum(begin < moment < end for moment in ticks))
            dist.barrier()
    done.set()
    ticker.join()
    events = calls(recording)[::2]
    blocked = [event.blocked_ns / 1e9 for event in events]
    taken = [(event.complete_ns - event.issue_ns) / 1e9 for event in events]
    return [event.is_async for event in events], blocked, taken, most_ticks


def test_waiting_is_measured_and_does_not_stop_other_threads() -> None:
    late_s = 0.3
    is_async, blocked, taken, ticks = run_processes(wait_for_a_late_rank, 2, late_s)[0]
    assert is_async == [False, True, True, False, False]
    assert all(late_s * 0.8 < each < late_s * 5 for each in blocked), blocked
    assert all(late_s * 0.8 < each < late_s * 5 for each in taken), taken
    assert min(ticks) >= 2, "a thread was kept from running while the call was waited for"


def overlap() -> tuple[int, int, int]:
    tensor = torch.ones(4)
    dist.barrier()
    with commtrace.record() as recording:
        work = dist.all_reduce(tensor, async_op=True)
        time.sleep(0.2)
        work.wait()  # type: ignore[union-attr]
        dist.all_reduce(tensor, async_op=True)
        time.sleep(0.2)
    waited, forgotten = calls(recording)
    return waited.blocked_ns, waited.complete_ns - waited.issue_ns, forgotten.blocked_ns


def unwaited_calls() -> int:
    """Number of completions that the backend still holds after a recording."""
    with commtrace.record(detail="collective"):
        for _ in range(50):
            dist.all_reduce(torch.ones(4), async_op=True)
        dist.barrier()
    return len(Completion.kept)


def test_no_thread_of_the_backend_needs_the_interpreter_after_a_recording() -> None:
    assert run_processes(unwaited_calls, 2) == [0, 0]


def test_the_frames_that_are_left_out_are_dtensor_cores_own(world: None) -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    left_out: list[str] = []

    with commtrace.record(detail="collective") as recording:
        issuer: Any = observe.issuer

        def looking(*args: Any) -> Any:
            for depth in range(1, 2 + NUM_ISSUING_FRAMES):
                module = sys._getframe(depth).f_globals["__name__"]
                left_out.append(module.partition(".")[0])
            return issuer(*args)

        bridge.set_issuer(looking)
        set_link(mesh, 0, latency_s=1e-5, bytes_per_s=1e10)
        ours.distribute_tensor(torch.ones(8, 8), mesh, [ours.Replicate()])
        cut = ours.DTensor.from_local(torch.ones(2, 8), mesh, [ours.Shard(0)])
        cut.redistribute(placements=[ours.Shard(1)])
        contributions = ours.DTensor.from_local(torch.ones(8), mesh, [ours.Partial()])
        contributions.redistribute(placements=[ours.Shard(0)])
        cut.full_tensor()
        torch.roll(cut, 1, 0)
        torch.argmax(cut, 0)
    issued = {each.native_op.removeprefix("c10d::") for each in calls(recording)}
    assert issued == {
        "allreduce_", "broadcast_", "alltoall_base_", "_reduce_scatter_base_", "_allgather_base_",
    }  # fmt: skip
    assert left_out == ["dtensor_core"] * (1 + NUM_ISSUING_FRAMES) * len(calls(recording))


def test_what_the_backend_does_not_let_go_of_is_waited_for_once() -> None:
    held = Completion(unplaced_call(), None)
    assert len(Completion.kept) == 1
    await_callbacks(0.01)
    assert not Completion.kept
    del held
    assert not Completion.kept


def test_completion_is_seen_where_it_is_and_not_where_it_is_waited_for() -> None:
    for blocked, taken, forgotten in run_processes(overlap, 2):
        assert blocked < 0.1e9
        assert 0 < taken < 0.15e9
        assert forgotten == -1  # no wait is known


def train_tensor_parallel(detail: str | None) -> tuple[list[torch.Tensor], Counter[Any]]:
    """Losses and gradients of three steps of a tensor-parallel MLP, and the recorded calls."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = nn.Sequential(MLPModule("cpu"), MLPModule("cpu"))
    styles = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
    for layer in model:
        parallelize_module(layer, mesh, styles)
    results, recording = [], commtrace.record(detail=detail or "collective")
    with recording if detail else nullcontext():
        for _ in range(3):
            loss = model(torch.ones(4, 10, requires_grad=True)).square().mean()
            loss.backward()
            results.append(loss.detach())
        gradients: list[Any] = [p.grad for p in model.parameters()]
        results += [gradient.to_local() for gradient in gradients]
    where = ("phase", "module", "op", "kind", "payload_bytes", "planned_bytes")
    comm = recording.trace().tables["comm"] if detail else {}
    return results, Counter(zip(*(comm[name] for name in where), strict=True) if detail else ())


@pytest.mark.parametrize("detail", ["collective", "op"])
def test_tensor_parallel_results_are_the_same_and_calls_are_those_of_theory(detail: str) -> None:
    plain = run_threads(train_tensor_parallel, 4, None)
    recorded = run_threads(train_tensor_parallel, 4, detail)
    for (one, _), (other, counts) in zip(plain, recorded, strict=True):
        assert all(a.equal(b) for a, b in zip(one, other, strict=True))
        # The output of the second layer is a sum over ranks in forward, the gradient of the first
        # layer's input is one in backward. Both are [4, 10] floats.
        size = 4 * 10 * 4
        phases = Counter((phase, kind, size) for phase, _, _, kind, size, _ in counts.elements())
        assert phases == {("forward", "all_reduce", size): 6, ("backward", "all_reduce", size): 6}
        modules = {(phase, module) for phase, module, *_ in counts}
        assert modules == {
            (phase, f"{layer}.{name}")
            for layer in (0, 1)
            for phase, name in (("forward", "net2"), ("backward", "net1"))
        }
        assert all(payload == planned for *_, payload, planned in counts)


LATE = """
import torch, commtrace
name = "symm_mem::one_shot_all_reduce"
def has_kernel():
    print(torch._C._dispatch_has_kernel_for_dispatch_key(name, "BackendSelect"))
with commtrace.record():
    has_kernel()
    import torch.distributed._symmetric_memory
    has_kernel()
has_kernel()
with commtrace.record():
    has_kernel()
"""


def test_symmetric_memory_is_recorded_once_the_program_has_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.split() == ["False", "True", "False", "True"]
