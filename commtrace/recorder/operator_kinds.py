"""Kinds of operators: what the recorder keeps once for all operators that differ in numbers only.

A thread runs several operators in a row at the same `OperatorPlace`. Each of them only checks that
the thread is still there, and finds its kind in the dictionaries of the place. Programs may make
new operators and regions without end, so a thread forgets all kinds once there are many, and
relearns those that occur again.
"""

from __future__ import annotations

from typing import Any

from torch import Tag, Tensor

from commtrace.recorder.module_place import ModuleCall, Place

DTENSOR, LOCAL = "dtensor", "local"
"""Levels of operators."""
_MAX_KINDS = 1 << 16
"""Bound on the kinds and places of a thread."""
_OVERWRITING = frozenset({"aten::copy_", "aten::fill_", "aten::zero_"})
"""Operators that replace the contents of their first argument, without reading it."""
_REARRANGING = frozenset({"aten::cat", "aten::stack", "aten::clone", "aten::_unsafe_view"})
"""Operators that only move elements, and return a tensor that autograd takes for new."""
_MOVED = {
    "aten::_to_copy": 0, "aten::cat": 0, "aten::clone": 0, "aten::copy_": 1,
    "aten::split_with_sizes_copy": 0, "fsdp::split_with_sizes_copy": 0,
}  # fmt: skip
"""Operators that cast, rearrange or unpack the elements of an argument, and its position."""
_UPDATING = frozenset({
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm",
    "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts",
    "aten::batch_norm_update_stats",
})  # fmt: skip
_STATISTICS = frozenset({"running_mean", "running_var"})
"""Arguments that these operators write to, which their schemas do not say."""
_NO_TASK = -2
"""Autograd task of no operator, not even of those outside of tasks."""


class OperatorPlace:
    """Rank, phase, regions, place and thread of operators.

    Attributes:
        call: the latest module call here.
        outer_call: the innermost module call of the thread then; differs from `call` in a backward
            pass.
        task: the autograd task then, -1 if none.
        made_from: the number from which autograd nodes of that task belong to `call`.
        made_until: the number that ends them.
        nearby: all of the same thread that differ in `place` only, by that.
        local: kinds of operators on plain tensors, by the operator's identity. Hashing an operator
            runs Python code; the kind keeps it alive.
        on_dtensors: kinds of operators on distributed tensors, likewise.
    """

    __slots__ = (
        "_kinds", "call", "local", "made_from", "made_until", "nearby", "on_dtensors",
        "outer_call", "phase", "place", "rank", "regions", "task", "thread",
    )  # fmt: skip

    def __init__(
        self,
        kinds: OperatorKinds,
        rank: int,
        phase: str,
        regions: tuple[str, ...],
        place: Place | None,
        thread: int,
    ) -> None:
        self._kinds = kinds
        self.rank = rank
        self.phase = phase
        self.regions = regions
        self.place = place
        self.thread = thread
        self.call: ModuleCall | None = None
        self.outer_call: ModuleCall | None = None
        self.task = _NO_TASK
        self.made_from = self.made_until = 0
        self.local: dict[int, OperatorKind] = {}
        self.on_dtensors: dict[int, OperatorKind] = {}
        self.nearby: dict[Place | None, OperatorPlace] = {}

    def learn(self, op: Any, level: str) -> OperatorKind:
        """Return a new kind of operators."""
        self._kinds.make_room(self)
        kind = OperatorKind(self, op, level)
        (self.local if level is LOCAL else self.on_dtensors)[id(op)] = kind
        return kind

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for nearby places of a thread."""
        return self.rank, self.phase, self.regions


class OperatorKind:
    """An operator, where it ran, and its level.

    Attributes:
        function: the function that ran its local part latest, if it is on distributed tensors.
        local: the kind of the local operator of the function; None unless it runs exactly one.
        known: the same for each function that ran its local part.
        computes: its results are no views of its arguments, and it reads what these contain.
        new: the class of its result, if it is a single tensor of its own; else None.
        written: positions of the arguments that it writes to without returning them.
        training: position of the argument without which it writes to none of them; else None.
        keeps_places: it only moves elements, or computes each from a single element of an argument.
        overwrites: it does not read its first argument, which it writes to.
        moved: position of the argument whose elements it casts, rearranges or unpacks; else None.
        is_new: its result is a tensor of its own, to which it moves these elements.
        out: name of the argument by which it returns its results, if it returns nothing.
    """

    __slots__ = (
        "computes", "function", "is_new", "keeps_places", "known", "level", "local", "moved",
        "new", "op", "out", "overwrites", "training", "where", "written",
    )  # fmt: skip
    # Columns of operators whose details are unknown.
    needs = shapes = ""
    flops = num_bytes = -1

    def __init__(self, where: OperatorPlace, op: Any, level: str) -> None:
        self.where = where
        self.op = op
        self.level = level
        self.function: Any = None
        self.local: OperatorKind | None = None
        self.known: dict[Any, OperatorKind | None] = {}
        schema = op._schema
        returned = [each.alias_info for each in schema.returns]
        is_query = schema.name.startswith("prim::")  # of the device, for instance
        self.computes = not is_query and (
            not returned or any(not info or info.is_write for info in returned)
        )
        self.written = _written_by(schema)
        names = [each.name for each in schema.arguments]
        self.training = names.index("training") if self.written and "training" in names else None
        self.moved = _MOVED.get(schema.name)
        is_single = returned == [None] and not self.written
        self.is_new = self.moved is not None and is_single
        self.new = Tensor if is_single and not self.is_new else None
        is_pointwise = self.new is not None and Tag.pointwise in op.tags
        self.keeps_places = is_pointwise or schema.name in _REARRANGING
        self.overwrites = schema.name in _OVERWRITING
        last = schema.arguments[-1:]
        self.out = "" if returned else "".join([each.name for each in last if _is_out(each)])


_NONE: dict[Place | None, OperatorPlace] = {}


class OperatorKinds:
    """Kinds of operators that a thread has run, by where it ran them."""

    __slots__ = ("_num_known", "_places")

    def __init__(self) -> None:
        self._places: dict[tuple[Any, ...], dict[Place | None, OperatorPlace]] = {}
        self._num_known = 0

    def where(
        self, rank: int, phase: str, regions: tuple[str, ...], place: Place | None, thread: int
    ) -> OperatorPlace:
        """Return where the thread, whose number is `thread`, runs an operator."""
        where = self._places.get((rank, phase, regions), _NONE).get(place)
        if where is None:
            where = OperatorPlace(self, rank, phase, regions, place, thread)
            self.make_room(where)
            where.nearby = self._places.setdefault(where.key, {})
            where.nearby[place] = where
        return where

    def make_room(self, where: OperatorPlace) -> None:
        """Count a new kind at `where`; if there are too many, forget all."""
        self._num_known += 1
        if self._num_known > _MAX_KINDS:
            for nearby in ({where.place: where}, *self._places.values()):
                for each in nearby.values():
                    each.local.clear()
                    each.on_dtensors.clear()
                    each.nearby = {}
            where.nearby = {where.place: where}
            self._places = {where.key: where.nearby}
            self._num_known = 1


def _written_by(schema: Any) -> tuple[int, ...]:
    """Return the positions of the arguments that an operator writes to without returning them."""
    returned = {
        name for each in schema.returns if (info := each.alias_info) for name in info.before_set
    }
    return tuple(
        [
            place
            for place, each in enumerate(schema.arguments)
            if (_is_written(each.alias_info) and not each.alias_info.before_set & returned)
            or (each.name in _STATISTICS and schema.name in _UPDATING)
        ]
    )


def _is_out(argument: Any) -> bool:
    return argument.kwarg_only and _is_written(argument.alias_info)


def _is_written(alias_info: Any) -> bool:
    return alias_info is not None and alias_info.is_write


NOWHERE = OperatorPlace(OperatorKinds(), -1, "", (), None, -1)
"""Place of a thread before its first operator."""
