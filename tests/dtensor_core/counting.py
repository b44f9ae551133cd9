"""Count the collectives that a rank issues, by c10d's functional names, and their sizes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from dtensor_core import DTensor

_NAMESPACES = ("c10d", "_c10d_functional")
_NO_COLLECTIVES = ("wait_tensor",)


class Collectives(TorchDispatchMode):
    """Counts collectives: `with Collectives() as issued:` then `issued == {"all_reduce": 1}`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # is dispatched again as its collectives and local operators
        name = func.overloadpacket.__name__
        if func.namespace in _NAMESPACES and name not in _NO_COLLECTIVES:
            self.counts[name.rstrip("_")] += 1
        return func(*args, **(kwargs or {}))

    def __eq__(self, other: object) -> bool:
        return dict(self.counts) == other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(dict(self.counts))


class Sent(TorchDispatchMode):
    """Records the bytes that this rank puts into all-to-alls."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.overloadpacket.__name__ == "all_to_all_single":
            self.num_bytes.append(args[0].numel() * args[0].element_size())
        return func(*args, **(kwargs or {}))


class Messages(TorchDispatchMode):
    """Records the collectives that this rank issues, each with its number of input elements.

    `with Messages() as sent:` then `sent.all == [("all_reduce", 512)]`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.all: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        name = func.overloadpacket.__name__
        if func.namespace in _NAMESPACES and name not in _NO_COLLECTIVES:
            counted = sum(args[2]) if name == "all_to_all_single" else args[0].numel()
            kind = name.removesuffix("_single").removesuffix("_tensor").removesuffix("_into")
            self.all.append((kind, counted))
        return func(*args, **(kwargs or {}))
