"""What a communication call carries, where the library that issues it is known: `Cargo`.

Three libraries do not communicate where the user's code stands: FSDP gathers a unit ahead of its
turn, DistributedDataParallel sends a bucket when its last gradient is there, and object collectives
send pickles. Each is known by a frame on the stack, or by the autograd node at work, and that says
for which modules it is and which parameters are in it.

Names are made when a call is written. A bucket's are DistributedDataParallel's own account, which
has them from the third iteration on; it is not asked from inside of a backward pass, where the
reducer holds the lock that guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn

OBJECTS, PARAMETERS, GRADIENTS = "objects", "parameters", "gradients"


def _no_names() -> Sequence[str]:
    return ()


@dataclass(frozen=True, slots=True)
class Cargo:
    """`carries` objects, parameters or gradients; of `modules`, where these are known."""

    carries: str
    modules: tuple[nn.Module, ...] = ()
    names: Callable[[], Sequence[str]] = _no_names


def _objects(frame: FrameType) -> Cargo:
    return _PICKLES


def _fsdp_parameters(frame: FrameType) -> Cargo:
    return _of_param_group(PARAMETERS, frame.f_locals["self"])


def _fsdp_gradients(frame: FrameType) -> Cargo:
    return _of_param_group(GRADIENTS, frame.f_locals["self"])


def _flat_parameters(frame: FrameType) -> Cargo:
    return _of_flat_handle(PARAMETERS, frame.f_locals["handle"])


def _flat_gradients(frame: FrameType) -> Cargo:
    return _of_flat_handle(GRADIENTS, frame.f_locals["handle"])


def _of_param_group(carries: str, group: Any) -> Cargo:
    names = tuple([each._param_fqn or "" for each in group.fsdp_params])
    return Cargo(carries, tuple(group.modules), lambda: names)


def _of_flat_handle(carries: str, handle: Any) -> Cargo:
    names = tuple(handle.flat_param._fqns)
    return Cargo(carries, (handle._fully_sharded_module,), lambda: names)


_PICKLES = Cargo(OBJECTS)
_C10D = "torch.distributed.distributed_c10d"
_FSDP1 = "torch.distributed.fsdp._runtime_utils"
_FSDP2 = "torch.distributed.fsdp._fully_shard._fsdp_param_group"

TELLING: dict[tuple[str, str], Callable[[FrameType], Cargo]] = {
    (_C10D, "all_gather_object"): _objects,
    (_C10D, "gather_object"): _objects,
    (_C10D, "broadcast_object_list"): _objects,
    (_C10D, "scatter_object_list"): _objects,
    (_C10D, "send_object_list"): _objects,
    (_C10D, "recv_object_list"): _objects,
    (_FSDP1, "_unshard"): _flat_parameters,
    (_FSDP1, "_reduce_grad"): _flat_gradients,
    (_FSDP2, "unshard"): _fsdp_parameters,
    (_FSDP2, "post_backward"): _fsdp_gradients,
}
"""Functions that tell what the calls below them carry, and how to read that from their frame."""


def cargo_of(frame: FrameType) -> Cargo:
    """What a frame of a function in `TELLING` tells."""
    return TELLING[frame.f_globals["__name__"], frame.f_code.co_name](frame)


class Bucket:
    """The names of the parameters in a bucket of DistributedDataParallel.

    Known are how many numbers it has and which parameter completed it. It keeps the model alive
    until the call is written, half a second later at most.
    """

    def __init__(self, wrapper: nn.Module, parameter: torch.Tensor, numel: int) -> None:
        self._wrapper: Any = wrapper
        self._parameter = parameter
        self._numel = numel

    def __call__(self) -> Sequence[str]:
        """The names; none where it can't be told."""
        wrapper, parameter = self._wrapper, self._parameter
        if torch._C._current_graph_task_id() >= 0:
            return ()
        named = [
            (name, each)
            for name, each in wrapper.module.named_parameters()
            if each.requires_grad and name not in wrapper.parameters_to_ignore
        ]
        position = next((i for i, (_, each) in enumerate(named) if each is parameter), None)
        everything = list(range(len(named)))
        for indices in (*_rebuilt(wrapper), everything):
            numels = [named[i][1].numel() for i in indices if i < len(named)]
            if position in indices and sum(numels) == self._numel:
                return [named[i][0] for i in indices]
        return ()


def _rebuilt(wrapper: Any) -> list[list[int]]:
    """The numbers of the parameters in each bucket, as the reducer has put them together."""
    told = wrapper._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    return [[int(number) for number in each.split()] for each in told.split(",") if each.strip()]
