"""The exceptions of dtensor_core, and the four parts of their messages.

A message states the request, what was found, the reason for the error, and a hint. Inner code
raises with the parts it knows; the boundary (`dispatch`, the public functions) adds the rest once.
Every class also derives from the built-in exception that programs written for DTensors already
catch.
"""

from __future__ import annotations


class DTensorError(Exception):
    """Base class of all errors that dtensor_core raises on purpose."""

    def __init__(self, summary: str, *, found: str = "", why: str = "", hint: str = "") -> None:
        super().__init__(four_parts(summary=summary, found=found, why=why, hint=hint))


class PlacementError(DTensorError, ValueError):
    """An invalid placement: unknown reduction, bad dim, wrong number of placements."""


class RedistributeError(PlacementError, RuntimeError):
    """A layout that a tensor can't be made from or redistributed to: Partial, or half of a
    shape.
    """


class LayoutError(DTensorError, ValueError):
    """Integers that describe no shard: a coordinate outside of the axis, a bad shape."""


class MeshError(DTensorError, ValueError, RuntimeError):
    """Tensors of different meshes, or a mesh that can't serve the request."""


class MixedTensorError(DTensorError, RuntimeError):
    """A plain tensor and a DTensor in the same operator."""


class OutOfRangeError(DTensorError, IndexError, RuntimeError):
    """An index out of range; torch's kernels raise either of the two built-in exceptions."""


class RuleError(DTensorError, RuntimeError):
    """An operator whose result can't have the requested layout."""


class MissingRuleError(RuleError, NotImplementedError):
    """An operator has no sharding rule, and none is possible or `missing_rule("error")` holds."""


class StaleViewError(DTensorError, RuntimeError):
    """Access to the local part of a copied view whose base has been written since."""


class TransformError(DTensorError, RuntimeError):
    """Making or redistributing a DTensor from a tensor wrapped by a transform of `torch.func`."""


class CompilationError(DTensorError, RuntimeError):
    """Ranks have compiled different collectives, or their comparison has a wrong setting."""


class RandomStateError(DTensorError, RuntimeError):
    """The ranks' generator states can't reproduce a single device's random numbers."""


class NotationError(DTensorError, ValueError):
    """A sharding rule whose notation is invalid or does not fit the shapes."""


def four_parts(*, summary: str, found: str, why: str = "", hint: str = "") -> str:
    """Format an error message: request, found, why, try; empty parts are left out."""
    parts = (("Found", found), ("Why", why), ("Try", hint))
    return "\n  ".join([summary, *(f"{name}: {text}" for name, text in parts if text)])
