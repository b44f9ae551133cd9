"""Parameters whose gradient is nothing but rounding errors, and the differences they cause.

A bias that is added to all keys of an attention, or before a normalization, does not change the
loss. Its gradient would be zero but for rounding, so it is different in each layout. An optimizer
that divides by the magnitude of gradients, such as Adam, moves the parameter as far as any other,
in a random direction. The parameter then differs by as much as both runs have moved it, and so do
the results of its module, its parent and their submodules, until it cancels.

The same holds for single elements of a parameter, such as the keys' part of a bias of queries, keys
and values. Then the gradient is right, and the difference after the step has no direction: it is
neither along the step, as with another learning rate, nor along the parameter, as with decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from commtrace.analyze.values.tolerance import GROWTH
from commtrace.schema import GRADIENT, PARAMETER, STATE, UPDATED

_ADAPTIVE = ("exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta")
"""States of optimizers that divide by the magnitude of gradients."""
_MOST_ALONG = 0.98
"""Cosine up to which sketches have different directions."""
_OF_ESTIMATE = 2.0
"""Factor by which four sketches may underestimate how far a parameter was moved."""


class Noise:
    """Parameters without influence, along the tensors of a program in order of time.

    Args:
        states: names of the optimizers' states.
    """

    def __init__(self, states: Iterable[str]) -> None:
        ends = (name.rpartition(".") for name in states)
        self._adaptive = {name for name, _, end in ends if end in _ADAPTIVE}
        self._has_right_gradient: dict[str, bool] = {}
        self._before: dict[str, np.ndarray] = {}
        self._names: set[str] = set()
        self._latest: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._moved: dict[str, float] = {}
        self._of_module: dict[str, float] = {}

    def follow(self, role: str, name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Note how far both runs have moved a parameter.

        Args:
            role: of the tensor; all but parameters are passed over.
            name: of the parameter.
            ours: its sketches in the first run.
            theirs: its sketches in the second run.
        """
        if role not in (PARAMETER, UPDATED):
            return
        if (before := self._latest.get(name)) is not None:
            moved = sum(
                float(np.sqrt(((now - then) ** 2).mean()))
                for now, then in zip((ours, theirs), before, strict=True)
            )
            self._moved[name] = self._moved.get(name, 0.0) + moved
            self._before[name] = before[0]
        self._latest[name] = ours, theirs

    def allowed(self, role: str, name: str, module: str, size: float) -> float:
        """Return the distance that noise explains, relative to the norm `size`."""
        if not self._names:
            return 0.0
        if role == STATE:
            return math.inf if name.rpartition(".")[0] in self._names else 0.0
        if role in (PARAMETER, UPDATED):
            if name not in self._names or not size > 0:
                return 0.0
            return _OF_ESTIMATE * self._moved.get(name, math.inf) / size
        if role == GRADIENT:
            return 0.0
        around = (module, module.rpartition(".")[0])
        return max(self._of_module.get(each, 0.0) for each in around)

    def accept(self, role: str, name: str, module: str, distance: float, usual: float) -> None:
        """Note a tensor that was found right.

        Args:
            role: of the tensor.
            name: of the parameter.
            module: of the parameter.
            distance: relative to its own norm.
            usual: distance that rounding explains.
        """
        if role == GRADIENT and distance > usual:
            self._names.add(name)
        elif role == UPDATED and name in self._names:
            for each in (module, module.rpartition(".")[0]):
                self._of_module[each] = max(self._of_module.get(each, 0.0), GROWTH * distance)

    def note_gradient(self, name: str, *, is_right: bool) -> None:
        """Note whether the latest gradient of a parameter is right."""
        self._has_right_gradient[name] = is_right

    def is_scattered(
        self, name: str, ours: np.ndarray, theirs: np.ndarray, *, has_other_norm: bool
    ) -> bool:
        """Return whether an updated parameter differs as rounding in single elements explains.

        Args:
            name: of the parameter.
            ours: its sketches in the first run.
            theirs: its sketches in the second run, nan if it is held in parts.
            has_other_norm: it is the norm that differs: single elements would change the sum more.
        """
        before = self._before.get(name)
        if name not in self._adaptive or not self._has_right_gradient.get(name) or before is None:
            return False
        apart, moved = theirs - ours, ours - before
        size = float(np.linalg.norm(apart))
        if np.isnan(size):
            if not has_other_norm:
                self._names.add(name)
            return not has_other_norm
        if size > _OF_ESTIMATE * float(np.linalg.norm(moved)):
            return False
        is_along = (
            abs(float(apart @ each)) > _MOST_ALONG * size * float(np.linalg.norm(each))
            for each in (moved, before)
        )
        found = not any(is_along)
        if found:
            self._names.add(name)
        return found
