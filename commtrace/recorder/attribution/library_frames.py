"""Attribution of communication that a library issues, from the library's frames on the stack.

Libraries communicate away from the user's code: FSDP prefetches a unit's all-gather,
DistributedDataParallel reduces a bucket when its last gradient is ready, object collectives send
pickles, and torch's DTensor redistributes an operator's arguments. Each is recognised by a frame
or by the running autograd node, which identifies the modules, the parameters, or the two layouts.

Parameter names are resolved when a call is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from commtrace.recorder.attribution.pipelines import transfer_below
from commtrace.recorder.events.location import Attribution, Redistribution
from commtrace.recorder.wrappers import plain_name
from commtrace.schema import HARNESS
from commtrace.torch_internals.tensors import dtype_abbrs

OBJECTS, PARAMETERS, GRADIENTS, FLAGS = "objects", "parameters", "gradients", "flags"
ACTIVATIONS = "activations"


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

    def reason() -> Redistribution:
        argument = _argument_at(operator, position)
        return Redistribution(str(operator), argument, _text_of_spec(source), _text_of_spec(target))

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

ATTRIBUTING: dict[tuple[str, str], Callable[[FrameType], Attribution | None]] = {
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


def attribution_by(frame: FrameType) -> Attribution | None:
    """Return the attribution by the frame of a function in `ATTRIBUTING`, or None."""
    return ATTRIBUTING[frame.f_globals["__name__"], frame.f_code.co_name](frame)
