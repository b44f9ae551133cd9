"""Memory that inductor overwrites, or reads too early or in a layout of its own, and sent booleans.

Values become silently wrong if such memory is overwritten:

- torch donates a saved tensor to the backward unless it shares the memory of an input, a result or
  a gradient. Two saved tensors may still share memory, as two shards of a replicated tensor do.
- The parts of a `cat` lie within its memory. An in-place reduction of it changes parts that are
  used again, and an in-place reduction of a part changes it.
- The cache of compiled graphs does not distinguish backwards by the tensors donated to them.
- A kernel whose loops are recomputed for its fusion with another forgets which of the results
  that it reads have to be waited for, and runs before the wait.
- A random operator in a checkpoint, such as attention, is given tensors in any layout, though its
  kernel may be right for contiguous tensors only. It then reads beyond their memory.

A number among the arguments of a collective, such as how many ranks gather, promotes booleans to
64-bit integers, which are sent, and which kernels then reject as a mask.

Plain programs are affected, too. Installed by the package, once.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.torch_internals.trees import tree_leaves


def install() -> None:
    """Patch decisions on memory, order and layouts, the keys of the cache, and the data sent."""
    when_loaded("torch._functorch._aot_autograd.graph_compile", _donate_unshared_memory)
    when_loaded("torch._inductor.fx_passes.reinplace", _reduce_apart)
    when_loaded("torch._inductor.codecache", _distinguish_donation)
    when_loaded("torch._inductor.scheduler", _keep_order)
    when_loaded("torch._inductor.lowering", _send_given_types)
    when_loaded("torch._inductor.lowering", _keep_strides)


def _donate_unshared_memory(graph_compile: Any) -> None:
    collect = graph_compile.collect_fw_donated_buffer_idxs

    @wraps(collect)
    def collect_unshared(
        fw_ins: Any, user_fw_outs: Any, bw_outs: Any, saved_tensors: Any
    ) -> list[int]:
        donated = collect(fw_ins, user_fw_outs, bw_outs, saved_tensors)
        storages = [StorageWeakRef(saved_tensors[index].untyped_storage()) for index in donated]
        num_tensors = Counter(storages)
        return [
            index
            for index, storage in zip(donated, storages, strict=True)
            if num_tensors[storage] == 1
        ]

    graph_compile.collect_fw_donated_buffer_idxs = collect_unshared


def _reduce_apart(reinplace: Any) -> None:
    for operator, how in reinplace.inplaceable_collective_ops.items():
        reinplace.inplaceable_ops[operator] = replace(how, extra_check=_is_apart)


def _is_apart(collective: torch.fx.Node) -> bool:
    """True if a collective may overwrite its inputs, since no other tensor lies in their memory."""
    return all(
        _is_part_of_none(node) and _has_own_parts(node)
        for given in collective.all_input_nodes
        for node in _sharing(given)
    )


def _is_part_of_none(node: torch.fx.Node) -> bool:
    return not any(_is_cat(user) for user in node.users)


def _has_own_parts(node: torch.fx.Node) -> bool:
    """True for a `cat` whose parts nothing else uses, and for other operators."""
    if not _is_cat(node):
        return True
    for part in node.all_input_nodes:
        sharing = _sharing(part)
        # The inputs of a graph are copied.
        is_input = any(each.op == "placeholder" for each in sharing)
        if not is_input and {user for each in sharing for user in each.users} - sharing != {node}:
            return False
    return True


def _is_cat(node: torch.fx.Node) -> bool:
    return node.target is torch.ops.aten.cat.default


def _sharing(node: torch.fx.Node) -> set[torch.fx.Node]:
    """Return a node and its views, and the tensors that it is a view of, and theirs."""
    found, near = {node}, [node]
    while near:
        at = near.pop()
        storages = _storages(at)
        for other in (*at.all_input_nodes, *at.users):
            if other not in found and not storages.isdisjoint(_storages(other)):
                found.add(other)
                near.append(other)
    return found


def _storages(node: torch.fx.Node) -> set[StorageWeakRef]:
    return {
        StorageWeakRef(each.untyped_storage())
        for each in tree_leaves(node.meta.get("val"))
        if isinstance(each, torch.Tensor) and each.layout is torch.strided
    }


def _distinguish_donation(codecache: Any) -> None:
    details = codecache.FxGraphHashDetails
    describe = details.__init__

    @wraps(describe)
    def describe_with_donation(self: Any, *args: Any, **kwargs: Any) -> None:
        describe(self, *args, **kwargs)
        # The key is the hash of all attributes. Graphs of unpatched processes have others.
        self.overwritten = (
            "apart, given types, in order, in strides",
            sys.modules["torch._inductor.utils"].get_donated_idxs(),
        )

    details.__init__ = describe_with_donation


def _keep_order(scheduler: Any) -> None:
    recompute = scheduler.SchedulerNode.recompute_size_and_body

    @wraps(recompute)
    def recompute_after_writes(self: Any, *args: Any, **kwargs: Any) -> None:
        recompute(self, *args, **kwargs)
        # A buffer that was written to, or waited for, is read by its name since then.
        self.set_read_writes(self.read_writes.rename(self.mutation_renames))

    scheduler.SchedulerNode.recompute_size_and_body = recompute_after_writes


def _send_given_types(lowering: Any) -> None:
    """Let collectives be compiled for the types of their arguments, without promotion."""
    for operator, lower in list(lowering.lowerings.items()):
        if lowering.in_namespace(operator, "_c10d_functional"):
            lowering.register_lowering(operator, type_promotion_kind=None)(lower.__wrapped__)


def _keep_strides(lowering: Any) -> None:
    """Give random operators in checkpoints tensors with the strides that they were traced with."""
    for operator, lower in list(lowering.lowerings.items()):
        if getattr(operator, "__name__", "") in _WITH_RANDOM_STATE:
            lowering.lowerings[operator] = _with_strides(lowering, lower)


_WITH_RANDOM_STATE = (
    "run_and_save_rng_state", "run_with_rng_state", "graphsafe_run_with_rng_state",
)  # fmt: skip


def _with_strides(lowering: Any, lower: Any) -> Any:
    @wraps(lower)
    def lower_with_strides(*args: Any, **kwargs: Any) -> Any:
        node = lowering.V.graph.current_node
        args, kwargs = lowering.constrain_to_fx_strides(node, *args, **kwargs)
        return lower(*args, **kwargs)

    return lower_with_strides
