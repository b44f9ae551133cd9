"""The exceptions of dtensor_core, and the four parts that each of their texts has.

A text says what was asked, what was found, why that can't be, and what to try. Inner code raises
with as many parts as it knows; the boundary (`dispatch`, the public functions) adds the rest once.
Every class also derives from the built-in that programs written for DTensors already catch.
"""

from __future__ import annotations


class DTensorError(Exception):
    """Base of all errors that dtensor_core raises on purpose."""


class PlacementError(DTensorError, ValueError):
    """A placement that can't be: unknown reduction, bad dim, wrong number of placements."""


class RedistributeError(PlacementError, RuntimeError):
    """A layout that a tensor can't be made from, or brought to: addends, or half of a shape."""


class LayoutError(DTensorError, ValueError):
    """Integers that describe no shard: a coordinate outside of the axis, a bad shape."""


class MeshError(DTensorError, ValueError, RuntimeError):
    """Tensors of different meshes, or a mesh that can't serve the request."""


class MixedTensorError(DTensorError, RuntimeError):
    """A plain tensor and a DTensor in one operator."""


class OutOfRangeError(DTensorError, IndexError, RuntimeError):
    """An index that names no position: torch's kernels raise the one built-in or the other."""


class RuleError(DTensorError, RuntimeError):
    """An operator whose result can't be laid out as it was asked to be."""


class MissingRuleError(RuleError, NotImplementedError):
    """An operator that has no sharding rule, and never can or `missing_rule("error")` holds."""


class StaleViewError(DTensorError, RuntimeError):
    """The local part of a view that is a copy, whose tensor was written since."""


class TransformError(DTensorError, RuntimeError):
    """A tensor that a transform of `torch.func` has wrapped, where a DTensor is made or moved."""


class RandomStateError(DTensorError, RuntimeError):
    """Ranks whose random numbers can't be those of one device."""


class NotationError(DTensorError, ValueError):
    """A sharding rule whose notation can't be read or does not fit the shapes."""


def four_parts(*, asked: str, found: str, why: str = "", hint: str = "") -> str:
    """The text of an error: asked, found, why, try; empty parts are left out."""
    parts = [asked, f"Found: {found}"]
    if why:
        parts.append(f"Why: {why}")
    if hint:
        parts.append(f"Try: {hint}")
    return "\n  ".join(parts)
