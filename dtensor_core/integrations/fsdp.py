"""`torch.distributed.fsdp.fully_shard` of modules of DTensors, such as tensor-parallel ones.

FSDP2 tells DTensors by torch's class, and makes its own of them. From the first module on that is
sharded while it holds DTensors of ours, it knows both classes, and makes ours. Installed by the
package, once.
"""

from __future__ import annotations

import dataclasses
import importlib
from functools import wraps
from typing import Any

from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.placement import Placement, Replicate, Shard, _StridedShard
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.tensor import DTensor

_PACKAGE = "torch.distributed.fsdp._fully_shard"
_MODULES = ("_fsdp_param", "_fsdp_common", "_fsdp_collectives", "_fsdp_init", "_fully_shard")
_OURS = {"Replicate": Replicate, "Shard": Shard, "_StridedShard": _StridedShard}


def install() -> None:
    """Look at the parameters of each module that is fully sharded."""
    when_loaded(f"{_PACKAGE}._fsdp_init", _watch)


def _watch(init: Any) -> None:
    original = init._get_managed_states

    @wraps(original)
    def get_managed_states(*args: Any, **kwargs: Any) -> Any:
        parameters, buffers = original(*args, **kwargs)
        if any(isinstance(parameter, DTensor) for parameter in parameters):
            teach()
        return parameters, buffers

    init._get_managed_states = get_managed_states


def teach() -> None:
    """Let FSDP2 know DTensors of both classes, and make ours."""
    common = importlib.import_module(f"{_PACKAGE}._fsdp_common")
    if isinstance(common.DTensor, _OfEither):
        return
    either = _OfEither("DTensor", (), {"theirs": common.DTensor})
    spec = _spec_of_either(common.DTensorSpec)
    changed = {**_OURS, "DTensor": either, "DTensorSpec": spec, "replace": _replace}
    for name in _MODULES:
        module = importlib.import_module(f"{_PACKAGE}.{name}")
        for known, replaced in changed.items():
            if hasattr(module, known):
                setattr(module, known, replaced)


class _OfEither(type):
    """The type of a class that stands for `theirs` and ours."""

    theirs: Any

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, (cls.theirs, DTensor))

    def __call__(cls, local: Any, spec: Any, **how: Any) -> Any:
        return (DTensor if isinstance(spec, Spec) else cls.theirs)(local, spec, **how)


def _replace(value: Any, **changes: Any) -> Any:
    """`dataclasses.replace`, and a spec of ours of another dtype, as mixed precision has it."""
    if isinstance(value, Spec):
        return Spec(value.mesh, value.placements, TensorMeta(*changes["tensor_meta"]))
    return dataclasses.replace(value, **changes)


def _spec_of_either(theirs: Any) -> Any:
    @wraps(theirs, updated=())
    def spec(mesh: Any, placements: Any, *, tensor_meta: Any) -> Any:
        if all(isinstance(placement, Placement) for placement in placements):
            return Spec(mesh, placements, TensorMeta(*tensor_meta))
        return theirs(mesh, placements, tensor_meta=tensor_meta)

    return spec
