"""Attribution of communication that a library issues, from the library's frames on the stack.

Libraries communicate away from the user's code: FSDP prefetches a unit's all-gather,
DistributedDataParallel reduces a bucket when its last gradient is ready, object collectives send
pickles, and torch's DTensor redistributes an operator's arguments. Each is recognised by a frame
or by the running autograd node, which identifies the modules, the parameters, or the two layouts.

Parameter names are resolved when a call is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import torch
from torch import nn

from commtrace.recorder.attribution.pipelines import transfer_below
from commtrace.recorder.events.location import Attribution, Redistribution
from commtrace.recorder.wrappers import plain_name
from commtrace.schema import HARNESS
from commtrace.torch_internals.tensors import dtype_abbrs

OBJECTS, PARAMETERS, GRADIENTS, FLAGS = "objects", "parameters", "gradients", "flags"
ACTIVATIONS = "activations"


def _objects(frame: FrameType, num_sent: int) -> Attribution:
    return _PICKLES


def _parameters(frame: FrameType, num_sent: int) -> Attribution:
    return _PARAMETERS


def _gradients(frame: FrameType, num_sent: int) -> Attribution:
    return _GRADIENTS


def _harness(frame: FrameType, num_sent: int) -> Attribution:
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


def _redistribution(frame: FrameType, num_sent: int) -> Attribution:
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


def _fsdp_parameters(frame: FrameType, num_sent: int) -> Attribution | None:
    if num_sent != frame.f_locals.get("all_gather_input_numel"):
        return None  # a hook of the program that prepares a parameter
    return _of_param_group(PARAMETERS, frame)


def _fsdp_gradients(frame: FrameType, num_sent: int) -> Attribution | None:
    found = frame.f_locals
    sizes = (found.get("reduce_scatter_input_numel"), found.get("reduce_scatter_output_numel"))
    if num_sent not in sizes:
        return None  # a hook of the program that gets a reduced gradient
    return _of_param_group(GRADIENTS, frame)


def _fsdp_gradient(frame: FrameType, num_sent: int) -> Attribution:
    parameter = frame.f_locals["self"]
    return _of_parameters(GRADIENTS, [parameter], (parameter._module_info.module,))


def _flat_parameters(frame: FrameType, num_sent: int) -> Attribution | None:
    return _of_flat_handle(PARAMETERS, frame.f_locals["handle"], num_sent)


def _flat_gradients(frame: FrameType, num_sent: int) -> Attribution | None:
    return _of_flat_handle(GRADIENTS, frame.f_locals["handle"], num_sent)


def _of_param_group(carries: str, frame: FrameType) -> Attribution:
    """Attribute an FSDP2 collective to the parameters that the function is given."""
    around: FrameType | None = frame
    while around is not None and around.f_code.co_name not in _OF_PARAM_GROUPS:
        around = around.f_back
    modules = () if around is None else tuple(around.f_locals["self"].modules)
    return _of_parameters(carries, frame.f_locals["fsdp_params"], modules)


def _of_parameters(
    carries: str, parameters: Sequence[Any], modules: tuple[nn.Module, ...]
) -> Attribution:
    def names() -> Sequence[str]:  # FSDP resolves the names in the first forward
        return [plain_name(each._param_fqn) for each in parameters if each._param_fqn]

    return Attribution(carries, modules, names)


def _of_flat_handle(carries: str, handle: Any, num_sent: int) -> Attribution | None:
    flat = handle.flat_param
    if num_sent < flat._sharded_size.numel():
        return None  # a hook of the program
    names = tuple(map(plain_name, flat._fqns))
    return Attribution(carries, (handle._fully_sharded_module,), lambda: names, are_relative=True)


def _of_stage(frame: FrameType, num_sent: int) -> Attribution | None:
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
_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
_FSDP2_PARAMETER = "torch.distributed.fsdp._fully_shard._fsdp_param"
_OF_PARAM_GROUPS = ("unshard", "post_backward")
"""Methods of FSDP2's parameter groups that communicate."""
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

ATTRIBUTING: dict[tuple[str, str], Callable[[FrameType, int], Attribution | None]] = {
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
    (_FSDP1, "_reduce_grad_no_shard"): _flat_gradients,
    (_FSDP2, "foreach_all_gather"): _fsdp_parameters,
    (_FSDP2, "foreach_reduce"): _fsdp_gradients,
    # DTensor redistributes the gradient of one parameter there.
    (_FSDP2_PARAMETER, "_get_grad_inner_tensor"): _fsdp_gradient,
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
"""Functions that describe the calls below them, with the reader of their frame.

A reader is given the number of elements that the call sends. It returns None if the call is not the
function's own but, say, a hook's: a call cannot carry more gradients than it sends.
"""


AttributingFrames = tuple[FrameType, "AttributingFrames | None"]
"""Frames of functions in `ATTRIBUTING`: the outermost, and those that it has called."""


def attribution_by(frames: AttributingFrames, sent: Sequence[torch.Size]) -> Attribution | None:
    """Return the attribution by the outermost frame that describes a call; None if none does.

    If torch's DTensor makes the call on behalf of a library, it has DTensor's reason, too.

    Args:
        frames: The frames.
        sent: Shapes of the tensors that the call sends.
    """
    num_sent = sum([shape.numel() for shape in sent])
    found: Attribution | None = None
    rest: AttributingFrames | None = frames
    while rest is not None:
        frame, rest = rest
        if found is None or (rest is None and found.reason is None):
            inner = ATTRIBUTING[frame.f_globals["__name__"], frame.f_code.co_name](frame, num_sent)
            if found is None:
                found = inner
            elif inner is not None and inner.reason is not None:
                found = replace(found, reason=inner.reason)
    return found
