"""torch.compile and torch.func: frames that dynamo skips, objects in graphs, transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo import eval_frame  # pyright: ignore
from torch._library import opaque_object
from torch._library.fake_class_registry import maybe_unwrap_fake_script_object
from torch.fx import traceback

__all__ = ["maybe_unwrap_fake_script_object"]

# The function and the kind have other names since torch 2.14, which logs a warning for these.
_REGISTER, _KIND = (
    (opaque_object.register_custom_class, "constant")  # pyright: ignore
    if hasattr(opaque_object, "register_custom_class")
    else (opaque_object.register_opaque_type, "value")
)

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
_SKIP = eval_frame._FrameAction.SKIP

current_transform = _functorch.peek_interpreter_stack
"""Return the innermost transform of `torch.func` in force; None if there is none."""
is_wrapped = _functorch.is_functorch_wrapped_tensor
"""Return whether a tensor stands for another in a transform."""


def register_constant(cls: type, members: Iterable[str]) -> None:
    """Make instances of a class constants for torch.compile, which calls `members` while tracing.

    Instances have `__eq__`, `__hash__` and `__fx_repr__`.
    """
    real = opaque_object.MemberType.USE_REAL
    _REGISTER(cls, typ=_KIND, members=dict.fromkeys(members, real))


def skip_frames(code: CodeType) -> None:
    """Run a function uncompiled wherever it is called, and all that it calls."""
    eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(_SKIP, _SKIP))


def without_transforms() -> Any:
    """Return a context in which no transform is in force."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


@contextmanager
def traced_in_place() -> Iterator[None]:
    """Keep operators that are traced for a backward graph in that graph.

    Otherwise the partitioner moves operators that need no gradient to the forward graph, or copies
    them there, as the sizes of a rank's tensors suggest.
    """
    meta = traceback.current_meta
    if meta.get("partitioner_tag") != "is_backward":
        yield
        return
    meta["partitioner_tag"] = "must_be_in_backward"
    try:
        yield
    finally:
        meta["partitioner_tag"] = "is_backward"


def never_merge(operator: Any) -> None:
    """Keep the partitioner from merging equal calls of an operator."""
    from torch._functorch.compile_utils import rand_ops

    if operator not in rand_ops:
        rand_ops.append(operator)


def save_in_checkpoints(collectives: Iterable[torch.fx.Node]) -> None:
    """Save the results of traced collectives that a checkpoint would repeat in the backward."""
    from torch.utils.checkpoint import CheckpointPolicy

    for collective in collectives:
        for node in (collective, *collective.users):
            if node.meta.get("recompute") is not None:
                node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def keep_in_forward(collectives: Iterable[torch.fx.Node]) -> None:
    """Keep traced collectives out of the backward, unless they belong there or are repeated there.

    Otherwise the partitioner copies those to the backward whose inputs are saved.
    """
    from torch._functorch.partitioners import must_recompute

    for collective in collectives:
        for node in (collective, *collective.users):
            if node.meta.get("partitioner_tag") == "is_forward" and not must_recompute(node):
                node.meta["partitioner_tag"] = "must_be_in_forward"


def _must_stay(node: torch.fx.Node) -> bool:
    return str(node.meta.get("partitioner_tag")).startswith("must_be_in_")


def keep_unused() -> None:
    """Let the partitioner keep operators that must stay in the backward, even if nothing uses them.

    Otherwise it drops those that precede the first use of a tangent.
    """
    from torch._functorch import partitioners

    reorder = partitioners.reordering_to_mimic_autograd_engine

    @wraps(reorder)
    def reorder_all(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        graph = module.graph
        first = next(filter(partitioners._has_tag_must_be_in_backward, graph.nodes), None)
        tangents = [*filter(partitioners._is_tangent, graph.find_nodes(op="placeholder"))]
        if first is None or not tangents:
            return reorder(module)
        # All that follows the first use of a tangent is kept, and what that needs.
        with graph.inserting_before(first):
            graph.call_function(torch.clone, (tangents[0],))
        module = reorder(module)
        for node in module.graph.find_nodes(op="call_function", target=torch.clone):
            module.graph.erase_node(node)
        module.recompile()
        return module

    partitioners.reordering_to_mimic_autograd_engine = reorder_all


def call_after_compiling(
    watch: Callable[[str, torch.fx.GraphModule, torch.fx.Graph], Callable[..., Any] | None],
) -> None:
    """Let `watch(title, program, traced)` wrap the compilation of a program's graphs, from now on.

    Its arguments are the name and place of the compiled function, the program as dynamo traced it,
    and the graph of local operators with its backward. It returns None, or a function that is
    called with "forward", "backward" or "inference", the graph, and a function that compiles it,
    whose result it returns.
    """
    from torch._dynamo.output_graph import OutputGraph
    from torch._functorch import aot_autograd

    call_backend, compile_stage = OutputGraph.call_user_compiler, aot_autograd.aot_stage2_compile
    current: ContextVar[Any] = ContextVar("current", default=None)

    def call_user_compiler(self: Any, program: Any, example_inputs: Any) -> Any:
        token = current.set((self, program))
        try:
            return call_backend(self, program, example_inputs)
        finally:
            current.reset(token)

    def aot_stage2_compile(
        aot_state: Any,
        aot_graph_capture: Any,
        partition_fn: Any,
        fw_compiler: Any,
        bw_compiler: Any = None,
        inference_compiler: Any = None,
    ) -> Any:
        compilers = {
            "forward": fw_compiler,
            "backward": bw_compiler or fw_compiler,
            "inference": inference_compiler or fw_compiler,
        }
        seen = None
        if current.get() is not None:
            output, program = current.get()
            code = output.root_tx.f_code
            title = f"{code.co_name} ({Path(code.co_filename).name}:{code.co_firstlineno})"
            seen = watch(title, program, aot_graph_capture.graph_module.graph)
        if seen is not None:
            compilers = {name: _seen(seen, name, each) for name, each in compilers.items()}
        return compile_stage(aot_state, aot_graph_capture, partition_fn, *compilers.values())

    OutputGraph.call_user_compiler = call_user_compiler  # pyright: ignore
    aot_autograd.aot_stage2_compile = aot_stage2_compile


def _seen(seen: Callable[..., Any], name: str, compiler: Callable[..., Any]) -> Callable[..., Any]:
    def compile_graph(module: torch.fx.GraphModule, inputs: Any) -> Any:
        return seen(name, module.graph, lambda: compiler(module, inputs))

    return compile_graph
