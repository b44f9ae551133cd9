"""torch.compile and torch.func are what `torch_internals.compilation` says of both packages."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from commtrace.torch_internals import compilation as recorders
from dtensor_core.torch_internals import compilation


def frames_compiled(mark: Callable[[CodeType], None]) -> int:
    """Return how many frames of a marked function, and of a function it calls, are compiled."""

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) * 2

    outer.__code__ = outer.__code__.replace()  # its own, since marks stay
    mark(outer.__code__)
    torch._dynamo.reset()
    counted = CompileCounter()
    torch.compile(outer, backend=counted)(torch.ones(2))
    return counted.frame_count


def test_skipped_frames_run_uncompiled_with_what_they_call() -> None:
    assert frames_compiled(lambda code: None) == 1
    assert frames_compiled(compilation.skip_frames) == 0
    skip = recorders.skip_frame
    assert frames_compiled(lambda code: skip(code, and_its_callees=True)) == 0
    assert frames_compiled(lambda code: skip(code, and_its_callees=False)) == 1


def test_a_transform_is_in_force_while_it_calls_its_function() -> None:
    seen: list[tuple[bool, bool]] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append((compilation.current_transform() is not None, compilation.is_wrapped(x)))
        with compilation.without_transforms():
            seen.append((compilation.current_transform() is not None, compilation.is_wrapped(x)))
        return x * 2

    torch.func.vmap(function)(torch.ones(2, 2))
    function(torch.ones(2))
    assert seen == [(True, True), (False, True), (False, False), (False, False)]


def test_no_trace_is_in_progress() -> None:
    assert recorders.TracingContext.try_get() is None


def test_values_of_opaque_types_are_constants_in_graphs(capfd: pytest.CaptureFixture[str]) -> None:
    class Constant:
        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Constant) and self.value == other.value

        def __hash__(self) -> int:
            return hash(self.value)

        def __fx_repr__(self) -> tuple[str, dict[str, Any]]:
            return f"Constant({self.value})", {"Constant": Constant}

        def is_one(self) -> bool:
            return self.value == 1

    compilation.register_constant(Constant, ["is_one"])
    assert "is deprecated" not in capfd.readouterr().err
    one = Constant(1)
    assert compilation.maybe_unwrap_fake_script_object(one) is one


def test_compilations_are_reported_with_the_guards_that_failed() -> None:
    seen: list[Any] = []
    observation = recorders.observe_compilations(
        lambda is_again: seen.append(("begins", is_again)),
        lambda code, reasons: seen.append((code.co_name, len(reasons))),
        lambda: seen.append("ends"),
    )
    assert observation is not None

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    torch._dynamo.reset()  # removes all callbacks
    observation.renew()
    compiled = torch.compile(function, backend="eager", dynamic=False)
    try:
        compiled(torch.ones(2))
        compiled(torch.ones(3))
    finally:
        observation.end()
    compiled(torch.ones(4))
    assert seen == [
        *(("begins", False), "ends"),
        *(("function", 1), ("begins", True), "ends"),
    ]


def test_compiled_frames_are_counted() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    assert not recorders.has_compiled()
    torch.compile(lambda x: x + 1, backend=CompileCounter())(torch.ones(2))
    assert recorders.has_compiled()
    torch._dynamo.utils.counters.clear()


def test_the_partitioner_leaves_marked_operators_alone() -> None:
    from torch._functorch.compile_utils import fx_graph_cse, rand_ops
    from torch._functorch.partitioners import _must_be_in_backward
    from torch.fx import traceback

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x) + torch.sin(x)

    def num_calls() -> int:
        graph = make_fx(function)(torch.ones(2)).graph
        return sum(node.target is torch.ops.aten.sin.default for node in fx_graph_cse(graph).nodes)

    assert num_calls() == 1
    compilation.never_merge(torch.ops.aten.sin)
    try:
        assert num_calls() == 2
    finally:
        rand_ops.remove(torch.ops.aten.sin)

    def traced(x: torch.Tensor) -> torch.Tensor:
        with compilation.traced_in_place():
            return torch.sin(x)

    for tag, stays in (("is_backward", True), ("is_forward", False)):
        with traceback.preserve_node_meta():
            traceback.current_meta["partitioner_tag"] = tag
            nodes = make_fx(traced)(torch.ones(2)).graph.nodes
            assert traceback.current_meta["partitioner_tag"] == tag
        [node] = [n for n in nodes if n.target is torch.ops.aten.sin.default]
        assert _must_be_in_backward(node) is stays


def test_what_is_saved_in_checkpoints_is_not_recomputed() -> None:
    from torch._functorch.partitioners import must_recompute
    from torch.utils.checkpoint import CheckpointPolicy

    graph = make_fx(lambda x: torch.sin(x).cos().sin())(torch.ones(2)).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    for node in nodes[:2]:
        node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE
    assert [must_recompute(node) for node in nodes] == [True, True, False]
    compilation.save_in_checkpoints(nodes[:1])
    assert [must_recompute(node) for node in nodes] == [False, False, False]
    assert "recompute" not in nodes[2].meta  # outside of the checkpoint


def test_what_must_stay_in_a_graph_is_kept_without_a_use(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch import partitioners

    name = "reordering_to_mimic_autograd_engine"
    reorder = getattr(partitioners, name)
    monkeypatch.setattr(partitioners, name, getattr(reorder, "__wrapped__", reorder))

    def sine_is_kept() -> bool:
        graph = torch.fx.Graph()
        x, tangent = graph.placeholder("x"), graph.placeholder("tangents_1")
        sine = graph.call_function(torch.ops.aten.sin.default, (x,))
        sine.meta["partitioner_tag"] = "must_be_in_backward"
        graph.output((graph.call_function(torch.ops.aten.neg.default, (tangent,)),))
        module = torch.fx.GraphModule(torch.nn.Module(), graph)
        made = partitioners.reordering_to_mimic_autograd_engine(module).graph
        targets = [node.target for node in made.nodes if node.op == "call_function"]
        assert set(targets) <= {torch.ops.aten.sin.default, torch.ops.aten.neg.default}
        return torch.ops.aten.sin.default in targets

    assert not sine_is_kept()
    compilation.keep_unused()
    assert sine_is_kept()


def test_collectives_of_the_forward_stay_there_unless_repeated() -> None:
    from torch._functorch.partitioners import _must_be_in_forward
    from torch.utils.checkpoint import CheckpointPolicy

    graph = make_fx(lambda x: (x.sin().cos(), x.exp().neg(), x.abs()))(torch.ones(2)).graph
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    sine, cosine, exp, _, absolute = nodes
    for node in nodes[:4]:
        node.meta["partitioner_tag"] = "is_forward"
    exp.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
    absolute.meta["partitioner_tag"] = "is_backward"
    compilation.keep_in_forward([sine, exp, absolute])
    assert [_must_be_in_forward(node) for node in (sine, cosine)] == [True, True]
    assert [_must_be_in_forward(node) for node in (exp, absolute)] == [False, False]


def test_compilations_of_graphs_can_be_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.output_graph import OutputGraph
    from torch._functorch import aot_autograd as stages

    seen: list[tuple[str, ...]] = []

    def watch(title: str, program: torch.fx.GraphModule, traced: torch.fx.Graph) -> Any:
        seen.append((title.partition(":")[0], str([n.name for n in program.graph.nodes][-2])))

        def compile_graph(part: str, graph: torch.fx.Graph, compiler: Callable[[], Any]) -> Any:
            seen.append(
                (part, str(any(n.target is torch.ops.aten.sin.default for n in graph.nodes)))
            )
            return compiler()

        return compile_graph if traced.nodes else None

    for owner, name in ((OutputGraph, "call_user_compiler"), (stages, "aot_stage2_compile")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # so that it is restored
    compilation.call_after_compiling(watch)

    def boxed(graph: torch.fx.GraphModule, _: Any) -> Any:
        return make_boxed_func(graph.forward)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    compiled = torch.compile(function, backend=aot_autograd(fw_compiler=boxed))
    torch._dynamo.reset()
    compiled(torch.ones(2, requires_grad=True)).sum().backward()
    compiled(torch.ones(3))
    program = ("function (test_compilation.py", "sin")
    assert seen == [
        program,
        ("forward", "True"),
        ("backward", "False"),
        program,
        ("inference", "True"),
    ]


def test_torch_donates_memory_of_two_saved_tensors() -> None:
    """Otherwise `integrations.inductor` is not needed."""
    from torch._functorch._aot_autograd.graph_compile import collect_fw_donated_buffer_idxs

    collect = collect_fw_donated_buffer_idxs.__wrapped__  # pyright: ignore
    with FakeTensorMode():
        x, product, other = torch.ones(4), torch.ones(4), torch.ones(4)
        assert collect([x], [], [], [product[:2], product[1:], x[:2], other]) == [0, 1, 3]


def test_keys_of_compiled_graphs_have_all_details_but_donation() -> None:
    from torch._inductor.codecache import FxGraphCachePickler, FxGraphHashDetails
    from torch._inductor.utils import get_donated_idxs

    assert get_donated_idxs() is None
    graph = make_fx(torch.sin)(torch.ones(2))
    describe = FxGraphHashDetails.__init__.__wrapped__  # pyright: ignore
    details = FxGraphHashDetails.__new__(FxGraphHashDetails)
    describe(details, graph, [], {}, [])
    assert not any("donat" in name for name in vars(details))
    pickler = FxGraphCachePickler(graph)
    keys = {pickler.get_key(details)}
    details.donated = [0]  # pyright: ignore
    keys.add(pickler.get_key(details))
    assert len(keys) == 2


def test_collectives_are_made_in_place_after_a_check() -> None:
    from torch._inductor.fx_passes.reinplace import inplaceable_collective_ops, inplaceable_ops

    functional = torch.ops._c10d_functional
    for operator, how in inplaceable_collective_ops.items():
        assert operator in (functional.all_reduce.default, functional.all_reduce_coalesced.default)
        assert how.extra_check(None)  # torch has none  # pyright: ignore
        assert inplaceable_ops[operator].inplace_op is how.inplace_op


def test_nodes_forget_what_they_wait_for_when_their_loops_are_recomputed() -> None:
    """Otherwise `integrations.inductor` need not keep the order."""
    from torch._inductor.dependencies import ReadWrites
    from torch._inductor.scheduler import SchedulerNode
    from torch.utils._ordered_set import OrderedSet

    node = SchedulerNode.__new__(SchedulerNode)
    node.mutation_renames = {"buf0": "buf1"}
    node.read_writes = ReadWrites(OrderedSet(), OrderedSet(), OrderedSet(), None)
    node._compute_attrs = lambda **_: None  # pyright: ignore
    renamed: list[object] = []
    node.set_read_writes = renamed.append  # pyright: ignore
    SchedulerNode.recompute_size_and_body.__wrapped__(node)  # pyright: ignore
    assert renamed == []
