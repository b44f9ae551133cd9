"""Layouts that the program declares, of outputs of modules, their gradients, and parameters."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

Declared = tuple[Any, tuple[Any, ...]]
"""Mesh and placements that the program declares for a plain tensor."""


class DeclaredLayouts:
    """Layouts by the module or parameter that they are declared for."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], Declared, Declared | None]] = {}

    def declare(
        self, target: Any, mesh: Any, placements: Sequence[Any], gradient: Sequence[Any] | None
    ) -> None:
        """Keep the layout of a target, and of its gradient, by default its dual."""
        dual = dual_of(placements) if gradient is None else gradient
        of_gradient = (mesh, tuple(dual)) if dual is not None else None
        self._known[id(target)] = weakref.ref(target), (mesh, tuple(placements)), of_gradient

    def of(self, target: Any) -> Declared | None:
        """Return the layout of a target; None if it has none."""
        known = self._known.get(id(target))
        return known[1] if known is not None and known[0]() is target else None

    def of_gradient(self, target: Any) -> Declared | None:
        """Return the layout of a module's output gradients; None if it is unknown."""
        known = self._known.get(id(target))
        return known[2] if known is not None and known[0]() is target else None


def dual_of(placements: Sequence[Any]) -> list[Any] | None:
    """Return the placements of the gradient of a plain tensor; None if they do not follow.

    A shard's gradient is a shard, and each contribution to a sum has the gradient of the sum. The
    gradient of a replica may be a replica, or a contribution to the gradient of the tensor: that
    depends on the layers that read it.
    """
    found: list[Any] = []
    for placement in placements:
        if getattr(placement, "dim", None) is not None:
            found.append(placement)
        elif type(placement).__name__ == "Partial" and placement.reduce_op == "sum":
            found.append(_REPLICATE)
        else:
            return None
    return found


class _Replicate:
    """Placement of tensors that each rank holds."""

    def is_replicate(self) -> bool:
        """Return True."""
        return True


_REPLICATE = _Replicate()
