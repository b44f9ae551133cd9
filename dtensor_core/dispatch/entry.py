"""Entries: decided calls in the form that `dispatch` can run repeatedly, one class per kind.

`make_entry` makes one from the decision of a call not seen before. `dispatch` runs it, and
`results` makes the call's results of the local ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from dtensor_core.dispatch.fallback import Missing
from dtensor_core.dispatch.inplace_writeback import Back, Out
from dtensor_core.redistribute.execute import Cause
from dtensor_core.redistribute.plan import Plan
from dtensor_core.spec import Spec

Moves = tuple[tuple[int, Plan, Cause], ...]
Outputs = tuple[Spec | None, ...] | None


@dataclass(slots=True, eq=False)
class Entry:
    """A cached decision, ready to run; a subclass per kind of call.

    Not frozen, although it is never modified: setting frozen fields takes a fifth of a first call.

    Attributes:
        run: The function to run on local tensors.
        moves: The redistributions of tensor arguments, by number.
        read: The names of the arguments whose values the decision depends on.
        missing: Describes the data that is gathered for lack of a rule.
    """

    run: Callable[..., Any]
    moves: Moves = ()
    read: frozenset[str] = frozenset()
    missing: Missing | None = None

    # Of the kinds that have none of their own; `dispatch` reads these on every call.
    single: ClassVar[Any] = None
    place: ClassVar[Any] = None
    backs: ClassVar[Any] = ()
    written: ClassVar[Any] = ()
    is_bare: ClassVar[Any] = False
    is_sizeless: ClassVar[Any] = False


@dataclass(slots=True, eq=False)
class PlainEntry(Entry):
    """A call that only returns new tensors.

    Attributes:
        outputs: The specs of the results to wrap. None: all are replicated; an element None: plain.
        single: The spec of the only result, if there is one to wrap.
        is_sizeless: True if the entry only runs the operator and moves nothing, for all sizes of
            one pattern (see `shape_generic_cache`).
    """

    outputs: Outputs = None
    single: Spec | None = None
    is_sizeless: bool = False

    def with_outputs(self, outputs: tuple[Spec, ...]) -> PlainEntry:
        """Return the entry of the same call at other sizes."""
        single = None if self.single is None else outputs[0]
        return PlainEntry(
            self.run, read=self.read, outputs=outputs, single=single, is_sizeless=True
        )


@dataclass(slots=True, eq=False)
class ViewEntry(Entry):
    """A call that returns a view of its first argument.

    Attributes:
        outputs: The specs of the view, or views.
        copied: True if they had to be made as copies, because that needed communication.
        may_copy: True if they are copies on ranks whose part can't be viewed (see
            `local.memory_layout`).
        is_sizeless: As in a `PlainEntry`.
    """

    outputs: Outputs = None
    copied: bool = False
    may_copy: bool = False
    is_sizeless: bool = False

    def with_outputs(self, outputs: tuple[Spec, ...]) -> ViewEntry:
        """Return the entry of the same call at other sizes."""
        return type(self)(self.run, read=self.read, outputs=outputs, is_sizeless=True)


@dataclass(slots=True, eq=False)
class ViewsEntry(ViewEntry):
    """A call that returns a list of views of its first argument."""


@dataclass(slots=True, eq=False)
class InPlaceEntry(Entry):
    """A call that writes to its arguments.

    Attributes:
        outputs: The specs of results that are new tensors.
        written: The written arguments that are returned.
        aside: The written arguments that are not returned.
        place: The position of the only written argument, if it is returned and nothing else is
            to do.
        backs: Redistributions of written copies to the arguments that they belong to.
        is_bare: True if the entry only runs the operator in place on local tensors.
        returns_nothing: True if the operator has no results.
    """

    outputs: Outputs = None
    written: tuple[int | str, ...] = ()
    aside: tuple[int | str, ...] = ()
    place: int | None = None
    backs: tuple[Back, ...] = ()
    is_bare: bool = False
    returns_nothing: bool = False


@dataclass(slots=True, eq=False)
class ListEntry(InPlaceEntry):
    """A call on lists of tensors, each element of which is decided by itself."""


@dataclass(slots=True, eq=False)
class ReshapingEntry(Entry):
    """A view in place: the first argument takes the result and its spec.

    Attributes:
        spec: The spec of the result.
        backs: As in an `InPlaceEntry`.
    """

    spec: Spec | None = None
    backs: tuple[Back, ...] = ()


@dataclass(slots=True, eq=False)
class OutEntry(Entry):
    """A call whose results the caller has given tensors for.

    Attributes:
        outs: The destinations of the results.
        written: The names of the arguments that hold them.
    """

    outs: tuple[Out, ...] = ()
    written: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class DecomposedEntry(Entry):
    """A call that other operators do: `run` takes the DTensors, with these argument values only."""
