"""Attribution of communication that a library issues, from the library's frames on the stack.

Libraries communicate away from the user's code: FSDP prefetches a unit's all-gather,
DistributedDataParallel reduces a bucket when its last gradient is ready, object collectives send
pickles, and torch's DTensor redistributes an operator's arguments. Each is recognised by a frame
or by the running autograd node, which identifies the modules, the parameters, or the two layouts.

Parameter names are resolved when a call is written. The names in a bucket come from
DistributedDataParallel, which is never queried during a backward pass: the reducer holds its lock
there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._dtype_abbrs import dtype_abbrs

from commtrace.recorder.pipelines import Transfer, transfer_below
from commtrace.recorder.wrappers import plain_name
from commtrace.schema import ALL_USED, HARNESS, SOME_UNUSED

OBJECTS, PARAMETERS, GRADIENTS, FLAGS = "objects", "parameters", "gradients", "flags"
ACTIVATIONS = "activations"


def _no_names() -> Sequence[str]:
    return ()


def _no_note() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Reason:
    """A redistribution of torch's DTensor; `operator` is `redistribute` if the user's own."""

    operator: str
    argument: str
    source: str
    target: str
    candidates: tuple[tuple[str, float], ...] = ()  # torch does not report the alternatives
    payload_bytes: int = -1  # nor the expected bytes

    @property
    def sentence(self) -> str:
        """The reason in one sentence."""
        needs = f"needs {self.argument} " if self.argument else ""
        return f"{self.operator} {needs}{self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Attribution:
    """Payload of a call and the part of the model it belongs to.

    Attributes:
        carries: objects, parameters, gradients, activations, flags (of the parameters that a pass
            has used), or `HARNESS` for the set-up and tear-down of a test.
        modules: the modules it belongs to, if known.
        names: returns the parameters' names.
        reason: returns why torch's DTensor redistributes, if it does.
        is_reducers: DistributedDataParallel's reducer waits for the call, in C++.
        are_relative: `names` are relative to the module that the call is attributed to.
        stage: the pipeline stage, if it is a transfer of one.
        note: returns what else the library says.
    """

    carries: str
    modules: tuple[nn.Module, ...] = ()
    names: Callable[[], Sequence[str]] = _no_names
    reason: Callable[[], Reason] | None = None
    is_reducers: bool = False
    are_relative: bool = False
    stage: Transfer | None = None
    note: Callable[[], str] = _no_note

    def key(self) -> tuple[Any, ...]:
        """Return the attribution's values as they are written."""
        reason = None if self.reason is None else self.reason()
        return self.carries, tuple(self.names()), reason, self.note()


def _objects(frame: FrameType) -> Attribution:
    return _PICKLES


def _parameters(frame: FrameType) -> Attribution:
    return _PARAMETERS


def _gradients(frame: FrameType) -> Attribution:
    return _GRADIENTS


def _harness(frame: FrameType) -> Attribution:
    return _HARNESS


_OPERATOR_ARGUMENTS = "redistribute_local_args"
_SPECS = {
    _OPERATOR_ARGUMENTS: ("arg_spec", "reshard_arg_spec"),
    "forward": ("current_spec", "target_spec"),
    "backward": ("current_spec", "target_spec"),
    "_redistribute_backward": ("current_spec", "previous_spec"),
}
"""Callers of a redistribution and the local variables that hold its specs. The redistribution
itself has many local variables; reading a caller's is cheaper, and dominates the cost here.
"""


def _redistribution(frame: FrameType) -> Attribution:
    caller = frame.f_back
    names = None if caller is None else _SPECS.get(caller.f_code.co_name)
    found: Mapping[str, Any] = {} if caller is None or names is None else caller.f_locals
    source, target = found.get(names[0]) if names else None, found.get(names[1]) if names else None
    if source is None or target is None:
        source, target = frame.f_locals["current_spec"], frame.f_locals["target_spec"]
    operator, position = "redistribute", -1
    if names is _SPECS[_OPERATOR_ARGUMENTS]:
        operator, position = found["suggested_input_schema"].op, found["i"]

    def reason() -> Reason:
        argument = _argument_at(operator, position)
        return Reason(str(operator), argument, _text_of_spec(source), _text_of_spec(target))

    return Attribution("", reason=reason)


def _argument_at(operator: Any, position: int) -> str:
    """Return an argument's name, or `#position` for operators on lists, which count it flat."""
    if position < 0:
        return ""
    arguments = operator._schema.arguments
    if any(str(each.type).startswith("List[Tensor") for each in arguments[: position + 1]):
        return f"#{position}"
    return arguments[position].name


def _text_of_spec(spec: Any) -> str:
    """Format a layout as dtensor_core does: `f32[8,16] tp:P(sum)`."""
    meta, mesh = spec.tensor_meta, spec.mesh
    names = mesh.mesh_dim_names or [f"axis{axis}" for axis in range(mesh.ndim)]
    layout = " ".join(f"{n}:{each}" for n, each in zip(names, spec.placements, strict=True))
    if meta is None:
        return layout
    shape = ",".join(map(str, meta.shape))
    return f"{dtype_abbrs.get(meta.dtype, meta.dtype)}[{shape}] {layout}"


def _fsdp_parameters(frame: FrameType) -> Attribution:
    return _of_param_group(PARAMETERS, frame.f_locals["self"])


def _fsdp_gradients(frame: FrameType) -> Attribution:
    return _of_param_group(GRADIENTS, frame.f_locals["self"])


def _flat_parameters(frame: FrameType) -> Attribution:
    return _of_flat_handle(PARAMETERS, frame.f_locals["handle"])


def _flat_gradients(frame: FrameType) -> Attribution:
    return _of_flat_handle(GRADIENTS, frame.f_locals["handle"])


def _of_param_group(carries: str, group: Any) -> Attribution:
    def names() -> Sequence[str]:  # FSDP resolves the names in the first forward
        return [plain_name(each._param_fqn) for each in group.fsdp_params if each._param_fqn]

    return Attribution(carries, tuple(group.modules), names)


def _of_flat_handle(carries: str, handle: Any) -> Attribution:
    names = tuple(map(plain_name, handle.flat_param._fqns))
    return Attribution(carries, (handle._fully_sharded_module,), lambda: names, are_relative=True)


def _of_stage(frame: FrameType) -> Attribution | None:
    transfer = transfer_below(frame)
    return None if transfer is None else Attribution(ACTIVATIONS, stage=transfer)


_PICKLES, _PARAMETERS, _GRADIENTS = (
    Attribution(OBJECTS),
    Attribution(PARAMETERS),
    Attribution(GRADIENTS),
)
_HARNESS = Attribution(HARNESS)
_C10D = "torch.distributed.distributed_c10d"
_FSDP1 = "torch.distributed.fsdp._runtime_utils"
_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

_DDP = "torch.nn.parallel.distributed"
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
_DTENSOR = "torch.distributed.tensor._redistribute"
_TESTING = "torch.testing._internal"

HARNESSES = {
    "dtensor_core.testing.cases": ("destroy_pg", "run_subtests"),
    f"{_TESTING}.distributed._tensor.common_dtensor": ("destroy_pg",),
    f"{_TESTING}.common_distributed": ("run_subtests", "wrapper"),
    f"{_TESTING}.common_fsdp": ("_run", "setUp", "tearDown", "wrapper"),
    f"{_TESTING}.distributed.checkpoint_utils": ("wrapper",),  # with_temp_dir agrees on a folder
}
"""Functions of test harnesses that communicate on their own behalf, around the test's body."""

TELLING: dict[tuple[str, str], Callable[[FrameType], Attribution | None]] = {
    (_C10D, "all_gather_object"): _objects,
    (_C10D, "gather_object"): _objects,
    (_C10D, "broadcast_object_list"): _objects,
    (_C10D, "scatter_object_list"): _objects,
    (_C10D, "send_object_list"): _objects,
    (_C10D, "recv_object_list"): _objects,
    (_DTENSOR, "redistribute_local_tensor"): _redistribution,
    ("torch.distributed.pipelining.schedules", "_batch_p2p"): _of_stage,
    (_FSDP1, "_unshard"): _flat_parameters,
    (_FSDP1, "_reduce_grad"): _flat_gradients,
    (_FSDP2, "unshard"): _fsdp_parameters,
    (_FSDP2, "post_backward"): _fsdp_gradients,
    ("torch.distributed.utils", "_sync_module_states"): _parameters,
    (_DDP, "_match_all_reduce_for_bwd_pass"): _gradients,
    # These run when a bucket's first message is complete, on an arbitrary thread.
    (f"{_HOOKS}.powerSGD_hook", "unpack_uncompressed_tensors_and_allreduce_ps"): _gradients,
    (f"{_HOOKS}.powerSGD_hook", "compute_qs"): _gradients,
    (f"{_HOOKS}.powerSGD_hook", "compute_q"): _gradients,
    (f"{_HOOKS}.ddp_zero_hook", "_broadcast_bucket"): _parameters,
    (_ZERO, "_broadcast_params_from_rank"): _parameters,
    (_ZERO, "_broadcast_object"): _objects,
    **{(module, name): _harness for module, names in HARNESSES.items() for name in names},
}
"""Functions that describe the calls below them, with the reader of their frame."""


def told_by(frame: FrameType) -> Attribution | None:
    """Return the attribution given by the frame of a function in `TELLING`, or None."""
    return TELLING[frame.f_globals["__name__"], frame.f_code.co_name](frame)


def given_bucket(frame: FrameType | None) -> dist.GradBucket | None:
    """Return the bucket that a communication hook was called with; its argument has this name."""
    bucket = frame.f_locals.get("bucket") if frame is not None else None
    return bucket if isinstance(bucket, dist.GradBucket) else None


class Named:
    """Callable that returns the names of parameters in a model."""

    def __init__(self, model: nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._model = model
        self._parameters = parameters

    def __call__(self) -> Sequence[str]:
        """Return the names."""
        names = {id(each): plain_name(name) for name, each in self._model.named_parameters()}
        return [names.get(id(each), "") for each in self._parameters]


class Bucket:
    """Callable that returns the parameter names in a bucket of DistributedDataParallel.

    Known are the bucket's number of elements and the parameter that completed it, unless the bucket
    was deferred to the end of the backward pass. The model is kept alive until the call is written,
    a moment later.
    """

    def __init__(self, wrapper: Any, parameter: torch.Tensor | None, numel: int) -> None:
        self._wrapper = wrapper
        self._parameter = parameter
        self._numel = numel

    def __call__(self) -> Sequence[str]:
        """Return the names; none if they cannot be determined."""
        wrapper, parameter = self._wrapper, self._parameter
        if torch._C._current_graph_task_id() >= 0:
            return ()
        named = [
            (plain_name(name), each)
            for name, each in wrapper.module.named_parameters()
            if each.requires_grad and name not in wrapper.parameters_to_ignore
        ]
        position = next((i for i, (_, each) in enumerate(named) if each is parameter), None)
        everything = list(range(len(named)))
        found = [
            [named[i][0] for i in indices]
            for indices in (*_rebuilt(wrapper), everything, *_initial(wrapper, named))
            if position in (None, *indices)
            and sum(named[i][1].numel() for i in indices if i < len(named)) == self._numel
        ]
        is_certain = position is not None or all(sorted(each) == sorted(found[0]) for each in found)
        return found[0] if found and is_certain else ()


class Unused:
    """Callable that returns DistributedDataParallel's last log entry on unused parameters.

    It logs the first ten passes, then one in a hundred.
    """

    def __init__(self, wrapper: Any) -> None:
        self._wrapper = wrapper

    def __call__(self) -> str:
        """Return the note; empty if nothing has been logged yet."""
        if torch._C._current_graph_task_id() >= 0:
            return ""
        num_bytes = self._wrapper._get_ddp_logging_data().get("unused_parameter_size")
        return "" if num_bytes is None else SOME_UNUSED if num_bytes else ALL_USED


def _initial(wrapper: Any, named: Sequence[tuple[str, torch.Tensor]]) -> list[list[int]]:
    """Return the initial buckets: runs of parameters in order, the last ones first."""
    sizes = wrapper._get_ddp_logging_data().get("bucket_sizes", "")
    buckets: list[list[int]] = []
    rest = iter(range(len(named)))
    for size in reversed([int(each) for each in sizes.split(",") if each.strip()]):
        bucket: list[int] = []
        while size > 0 and (i := next(rest, None)) is not None:
            bucket.append(i)
            size -= named[i][1].numel() * named[i][1].itemsize
        if size:  # parameters of several dtypes are distributed differently
            return []
        buckets.append(bucket)
    return buckets


def _rebuilt(wrapper: Any) -> list[list[int]]:
    """Return the parameter indices of each bucket as the reducer has rebuilt them."""
    told = wrapper._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [[int(number) for number in each.split()] for each in told.split(",") if each.strip()]
