"""View operators whose result required communication; writes propagate back to the base.

A write to such a copy is scattered into its base by `write_through`. A write to the base is fetched
by the next operator on the copy (`MaterializedView.renew`). Autograd counts the versions of a
tensor and of its views together, so the copy records the version it is valid for. Reading the local
part alone raises, since ranks may do so independently and nothing can be fetched then. Called by
`dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dtensor_core.dispatch.arguments import Args, Kwargs
from dtensor_core.errors import RuleError, StaleViewError
from dtensor_core.operators.kernels.memory_layout import CopyConversions
from dtensor_core.spec import Spec, TensorMeta
from dtensor_core.torch_internals.dispatcher import OpOverload, below_inplace_or_view

aten = torch.ops.aten


@dataclass(slots=True)
class MaterializedView:
    """Result `number` of the view `op` of `base`, held as the copy `local`, laid out as `spec`.

    `version` is the version of `base` that the copy is valid for; None in inference mode, where
    versions are not counted. Views of the copy share this object.
    """

    base: Any
    op: OpOverload
    number: int
    args: tuple[Any, ...]
    kwargs: Kwargs
    local: torch.Tensor
    spec: Spec
    version: int | None

    @property
    def is_stale(self) -> bool:
        """True if the base has been written since, other than through this copy."""
        return self.version is not None and self.version != self.base._version

    def renew(self) -> None:
        """Fetch later writes to the base; a collective operation."""
        if not self.is_stale:
            return
        # Fetching is no write by the program: it is not recorded, and no version is counted.
        with below_inplace_or_view():
            views = self.op(self.base, *self.args, **self.kwargs)
            view = views[self.number] if isinstance(views, (list, tuple)) else views
            _once(self.local).copy_(_once(view._local_tensor))
        self.version = self.base._version


@dataclass(slots=True)
class LocalCopy:
    """A view of `base` that had to be copied on this rank, as `local`, by `conversions`.

    Other ranks may hold views. Writes are copied between the two on this rank alone.
    """

    base: Any
    conversions: CopyConversions
    local: torch.Tensor
    version: int | None

    @property
    def is_stale(self) -> bool:
        """True if the base has been written since, other than through this copy."""
        return self.version is not None and self.version != self.base._version

    def renew(self) -> None:
        """Copy later writes to the base into this copy."""
        # The base may be a copied view itself, whose own base was written since.
        if self.base._copied is not None:
            self.base._copied.renew()
        if self.is_stale:
            with below_inplace_or_view():
                self.local.copy_(self.conversions.to_copy(self.base._local_tensor))
            self.version = self.base._version

    def written(self) -> None:
        """Propagate writes to this copy to the base."""
        self.conversions.from_copy(self.base._local_tensor, self.local)
        if self.base._copied is not None:
            write_through(self.base._copied, None, (self.base,))
        if self.version is not None:
            # Autograd counts this write only after the operator has returned.
            self.version = self.base._version + 1


def class_of_copies(cls: type[Any]) -> type[Any]:
    """Make the subclass of a DTensor class for such copies and for views of them.

    A separate class keeps other tensors free of cost: `dispatch` looks closer at this type only.
    """
    stored = cls._local_tensor

    class Copy(cls):
        __slots__ = ()

        @property
        def _local_tensor(self) -> torch.Tensor:
            if self._copied is not None and self._copied.is_stale:
                if type(self._copied) is MaterializedView:
                    raise _stale(self)
                self._copied.renew()
            return stored.__get__(self)

        @_local_tensor.setter
        def _local_tensor(self, local: torch.Tensor) -> None:
            stored.__set__(self, local)

        def redistribute(self, *args: Any, **kwargs: Any) -> Any:
            if self._copied is not None:
                self._copied.renew()
            return super().redistribute(*args, **kwargs)

        def full_tensor(self, **kwargs: Any) -> torch.Tensor:
            if self._copied is not None:
                self._copied.renew()
            return super().full_tensor(**kwargs)

        # Copied and stored without its base: otherwise a small view stores the full tensor.
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return self._alone().__deepcopy__(memo)

        def __reduce_ex__(self, protocol: Any) -> Any:
            return self._alone().__reduce_ex__(protocol)

        def _alone(self) -> Any:
            """Return an independent DTensor of the same local tensor."""
            return cls(self._local_tensor, self._spec, requires_grad=self.requires_grad)

        def __repr__(self, **kwargs: Any) -> str:
            if type(self._copied) is MaterializedView and self._copied.is_stale:
                return f"DTensor({self._spec.text}, an outdated copy: its base was written since)"
            return super().__repr__(**kwargs)

    # The metaclass of DTensor compares classes by these names, so torch's modes treat both alike.
    Copy.__name__, Copy.__qualname__, Copy.__module__ = (
        cls.__name__,
        cls.__qualname__,
        cls.__module__,
    )
    return Copy


def _stale(view: Any) -> StaleViewError:
    copied = view._copied
    return StaleViewError(
        f"the local part of {view._spec.text}",
        found=f"{copied.op} of {copied.base._spec.text}, which was written since",
        why="taking this view needed communication, so it is a copy: the next operator on all "
        "ranks fetches the written values, but reading the local tensor does not",
        hint="take the view again, or call redistribute(), full_tensor() or an operator first",
    )


def _once(local: torch.Tensor) -> torch.Tensor:
    """Narrow expanded dims (of stride 0) to a single element, as they can't be written."""
    for dim, step in enumerate(local.stride()):
        if step == 0 and local.shape[dim] > 1:
            local = local.narrow(dim, 0, 1)
    return local


def version_of(tensor: torch.Tensor) -> int | None:
    """Return the version of a tensor and its views; None if versions are not counted."""
    return None if tensor.is_inference() else tensor._version


def check_writable(copied: MaterializedView | LocalCopy) -> None:
    """Raise RuleError if a write to the copy could not be propagated to its base."""
    if isinstance(copied, LocalCopy):
        if copied.base._copied is not None:
            check_writable(copied.base._copied)
        return
    base = copied.base._spec
    if any(step == 0 and size > 1 for step, size in zip(base.stride, base.shape, strict=True)):
        raise RuleError(
            "to write to a view of a DTensor",
            found=f"a copy, {copied.spec.text}: {copied.op} of an expanded tensor needed "
            "communication",
            why="elements of an expanded tensor share memory, so a single write would change "
            "several",
            hint="clone() the expanded tensor first",
        )
    if _name(copied) not in _SCATTERS:
        raise RuleError(
            "to write to a view of a DTensor",
            found=f"a copy, {copied.spec.text}: {copied.op} needed communication",
            why="the write could not be propagated to the base of the view",
            hint="redistribute that tensor first so that the view needs no communication, or "
            "use the operator's out-of-place form",
        )


def write_through(copied: MaterializedView | LocalCopy, op: OpOverload | None, args: Args) -> None:
    """Write the copy, which `op` has written, into its base.

    An operator that overwrites the entire copy is replayed from its argument, so the copy need not
    be gathered. A view of the copy overwrites only some of its elements.

    Raises:
        RuleError: The base cannot be written to.
    """
    check_writable(copied)
    if isinstance(copied, LocalCopy):
        copied.written()
        return
    make = (
        _OVERWRITING.get(op) if op is not None and args[0]._local_tensor is copied.local else None
    )
    part = make(copied, args) if make else None
    if part is None:
        part = type(copied.base)(copied.local, copied.spec)
    aten.copy_.default(copied.base, _SCATTERS[_name(copied)](copied, part))
    if copied.version is not None:
        copied.version = copied.base._version + 1  # set by autograd after the operator


def _constant(copied: MaterializedView, args: Args) -> Any:
    """Return the value that `fill_` writes, replicated; None if it is a DTensor."""
    value = args[1] if len(args) > 1 else 0
    if hasattr(value, "_spec"):
        return None
    shape, dtype = copied.spec.shape, copied.spec.dtype
    return _full(copied, copied.local.new_full((), 0, dtype=dtype).fill_(value).expand(shape))


def _source(copied: MaterializedView, args: Args) -> Any:
    """Return the value that `copy_` writes, in the layout of its source."""
    shape, dtype = list(copied.spec.shape), copied.spec.dtype
    if not isinstance(args[1], torch.Tensor):  # a number
        return _constant(copied, args)
    if hasattr(args[1], "_spec"):
        return aten._to_copy.default(aten.expand.default(args[1], shape), dtype=dtype)
    return _full(copied, args[1].to(dtype).expand(shape))


def _full(copied: MaterializedView, value: torch.Tensor) -> Any:
    meta = TensorMeta(value.shape, value.stride(), value.dtype)
    return type(copied.base)(
        value, Spec(copied.spec.mesh, copied.spec.placements, meta).replicated()
    )


_OVERWRITING: dict[Any, Callable[[MaterializedView, Sequence[Any]], Any]] = {
    aten.zero_.default: _constant,
    aten.fill_.Scalar: _constant,
    aten.fill_.Tensor: _constant,
    aten.copy_.default: _source,
}


def _name(copied: MaterializedView) -> str:
    return copied.op._schema.name.removeprefix("aten::")


def _scattered(operator: Callable[..., Any]) -> Callable[[MaterializedView, Any], Any]:
    """Make the inverse from torch's scatter operator, which takes the view's own arguments."""
    return lambda copied, part: operator(copied.base, part, *copied.args, **copied.kwargs)


def _reshaped(copied: MaterializedView, part: Any) -> Any:
    if part.dtype is not copied.base.dtype:
        return aten.view.dtype(part, copied.base.dtype)
    return aten.reshape.default(part, list(copied.base.shape))


def _transposed(copied: MaterializedView, part: Any) -> Any:
    return aten.transpose.int(part, *copied.args)


def _permuted(copied: MaterializedView, part: Any) -> Any:
    order = [dim % part.ndim for dim in copied.args[0]]
    # Sorting the positions of a permutation by its values gives the inverse permutation.
    return aten.permute.default(part, sorted(range(part.ndim), key=order.__getitem__))


def _split(copied: MaterializedView, part: Any) -> Any:
    """Scatter the piece of this number, for equal pieces or given sizes."""
    sizes, dim = copied.args[0], (*copied.args[1:], copied.kwargs.get("dim", 0))[0]
    start = copied.number * sizes if isinstance(sizes, int) else sum(sizes[: copied.number])
    return aten.slice_scatter.default(copied.base, part, dim, start, start + part.shape[dim])


def _unbound(copied: MaterializedView, part: Any) -> Any:
    dim = (*copied.args, copied.kwargs.get("dim", 0))[0]
    return aten.select_scatter.default(copied.base, part, dim, copied.number)


_SCATTERS: dict[str, Callable[[MaterializedView, Any], Any]] = {
    "slice": _scattered(aten.slice_scatter.default),
    "select": _scattered(aten.select_scatter.default),
    "diagonal": _scattered(aten.diagonal_scatter.default),
    "as_strided": _scattered(aten.as_strided_scatter.default),
    "split": _split,
    "split_with_sizes": _split,
    "unbind": _unbound,
    "transpose": _transposed,
    "permute": _permuted,
    "t": lambda copied, part: aten.t.default(part),
    "view_as_complex": lambda copied, part: aten.view_as_real.default(part),
    "view_as_real": lambda copied, part: aten.view_as_complex.default(part),
    **dict.fromkeys(("view", "_unsafe_view", "unsqueeze", "squeeze", "_reshape_alias"), _reshaped),
}
