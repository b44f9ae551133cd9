"""Context in which tensors of the program are read."""

from __future__ import annotations

from typing import Any

import torch

from commtrace.torch_internals.dispatcher import (
    current_mode,
    no_torch_functions,
    no_transforms,
    pop_mode,
    push_mode,
)


class Reading:
    """Context without gradients, and without the modes, default device and transforms in force.

    It does what `torch.no_grad` and `no_dispatch_modes` do, which take longer than to compute the
    numbers of a small tensor, and is entered for each tensor.
    """

    __slots__ = ("_had_gradients", "_modes", "_no_functions", "_no_transforms")

    def __enter__(self) -> None:
        self._modes: list[Any] = []
        while current_mode() is not None:
            self._modes.append(pop_mode(None))
        self._no_functions = no_torch_functions()
        self._no_functions.__enter__()
        self._no_transforms = no_transforms()
        self._no_transforms.__enter__()
        self._had_gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch.set_grad_enabled(self._had_gradients)
        self._no_transforms.__exit__(None, None, None)
        self._no_functions.__exit__(None, None, None)
        for mode in reversed(self._modes):
            push_mode(mode)
