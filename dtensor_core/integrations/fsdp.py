"""FSDP2 (`torch.distributed.fsdp.fully_shard`): the DTensor class of its sharded parameters.

Once dtensor_core is imported, a plain parameter or our DTensor becomes our DTensor, and a torch
DTensor (of a module that torch's own styles parallelized) stays torch's. The parameter alone
decides; neither the order in which modules are wrapped nor earlier events in the process change the
class. FSDP2 makes its DTensors from a spec, and each spec from the metadata of its parameter. The
class of that metadata distinguishes the two. Installed by the package, once.
"""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from dtensor_core.integrations.union_class import UnionClass
from dtensor_core.integrations.when_loaded import when_loaded
from dtensor_core.placement import Replicate, Shard, _StridedShard, as_placement
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.tensor import DTensor

_PACKAGE = "torch.distributed.fsdp._fully_shard"
_MODULES = ("_fsdp_param", "_fsdp_common", "_fsdp_collectives", "_fsdp_init", "_fully_shard")
_PLACEMENTS = {"Replicate": Replicate, "Shard": Shard, "_StridedShard": _StridedShard}


def install() -> None:
    """Patch FSDP2 once the program has loaded it; the module named is the last of its package."""
    when_loaded(f"{_PACKAGE}._fully_shard", patch)


def patch(_: Any) -> None:
    """Make FSDP2 accept DTensors and placements of both classes, and make ours by default."""
    modules = [sys.modules[f"{_PACKAGE}.{name}"] for name in _MODULES]
    theirs = {name: value for module in modules for name, value in vars(module).items()}
    changed: dict[str, Any] = {
        name: UnionClass(name, (), {"ours": ours, "theirs": theirs[name]})
        for name, ours in _PLACEMENTS.items()
    }
    changed["DTensor"] = _EitherDTensor(
        "DTensor", (), {"ours": DTensor, "theirs": theirs["DTensor"]}
    )
    changed["TensorMeta"] = TensorMeta
    changed["DTensorSpec"] = _spec_maker(theirs)
    changed["replace"] = _replace
    for module in modules:
        for name in changed.keys() & vars(module).keys():
            setattr(module, name, changed[name])


class _EitherDTensor(UnionClass):
    """Metaclass for DTensors; calls make the class whose spec is given."""

    def __call__(cls, local: Any, spec: Any, **how: Any) -> Any:
        return (cls.ours if isinstance(spec, Spec) else cls.theirs)(local, spec, **how)


def _spec_maker(theirs: dict[str, Any]) -> Any:
    """Make a function that makes a spec of the class whose `tensor_meta` it is given."""

    def as_theirs(placement: Any) -> Any:
        if not isinstance(placement, tuple(_PLACEMENTS.values())):
            return placement
        return theirs[type(placement).__name__](
            **{name: getattr(placement, name) for name in type(placement).__slots__}
        )

    def make(mesh: Any, placements: Any, *, tensor_meta: Any) -> Any:
        if isinstance(tensor_meta, TensorMeta):
            return Spec(mesh, tuple(as_placement(each) for each in placements), tensor_meta)
        placed = tuple(as_theirs(each) for each in placements)
        return theirs["DTensorSpec"](mesh, placed, tensor_meta=tensor_meta)

    return make


def _replace(value: Any, **changes: Any) -> Any:
    """`dataclasses.replace`, extended to specs of either class with another `tensor_meta`.

    Mixed precision gathers a parameter in another dtype than it is sharded in.
    """
    if "tensor_meta" in changes:
        meta = type(value.tensor_meta)(*changes["tensor_meta"])
        if isinstance(value, Spec):
            return Spec(value.mesh, value.placements, meta)
        changes["tensor_meta"] = meta
    return dataclasses.replace(value, **changes)
