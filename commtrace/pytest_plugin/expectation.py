"""Expectations of a test: the arguments of the marker and of `comms.expect`.

Converts keyword arguments into claims: bounds on quantities, each over the calls that pass the same
filters. A bound applies to a rank's calls, and every rank must satisfy it, unless `ranks` says
otherwise.

    all_reduce=2   all_reduce="<=2"   all_reduce=">=1"   all_reduce="1..3"   max_total=5
    payload="64 KiB"   payload="<=1 MB"   max_payload="1 MB"   max_largest="25 MB"
    exposed="5%"   exposed=0.05   min_exposed="1%"
    module="layers.*"   phase="backward"   group="tp"   op="aten.mm*"   region="loss"
    none=True   exact=True   ranks=0   ranks=[0, 1]   ranks="sum"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commtrace.collective_table import KINDS
from commtrace.errors import UsageError
from commtrace.schema import PHASES
from commtrace.units import bytes_of_text, text_of_bytes

EXPOSED = "exposed"
PER_MILLION = 1_000_000
"""Shares are counted in millionths, as all quantities are integers."""
SIZES = ("payload", "wire", "largest")
QUANTITIES = {
    **{kind: f"calls of kind {kind}" for kind in KINDS},
    "total": "calls of any kind",
    "payload": "bytes of payload, summed over the calls",
    "wire": "bytes sent under the ring algorithm, summed over the calls",
    "largest": "bytes of payload of the largest call",
    EXPOSED: "part of the steps, or of the recording without steps, in which calls blocked the "
    "rank; at most the given part",
}
"""Quantities that can be bounded, with their meaning on a rank."""

_ALIASES = {"calls": "total"}
_BOUNDS = {"max_": "<=", "min_": ">="}
FILTERS = {
    "module": "path of the module or of an enclosing module: a glob pattern",
    "phase": "forward, backward, recompute, optimizer or other",
    "group": "mesh axis, name or description of the group: a pattern",
    "axis": "mesh axis of the group: a pattern",
    "op": "operator that needed it: a pattern, with or without its namespace and overload",
    "region": "name passed to comms.region(...): a pattern",
    "step": "number of the step, from 0",
    "dtype": "element type: a pattern",
    "source": "file of the user's line: a pattern of its last components",
}
"""Filters of calls; several values mean any of them."""

SUM = "sum"
_OTHERS = ("none", "exact", "ranks")
KNOWN = (
    *QUANTITIES,
    *_ALIASES,
    *(prefix + name for prefix in _BOUNDS for name in (*QUANTITIES, *_ALIASES)),
    *FILTERS,
    *_OTHERS,
)
_COMPARISONS = {
    "<=": lambda found, bound: found <= bound,
    ">=": lambda found, bound: found >= bound,
    "==": lambda found, bound: found == bound,
    "!=": lambda found, bound: found != bound,
    "<": lambda found, bound: found < bound,
    ">": lambda found, bound: found > bound,
}
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")
_FORM = re.compile(r"\s*(<=|>=|==|!=|<|>|=)?\s*(.+?)\s*")


@dataclass(frozen=True, slots=True)
class Bound:
    """One comparison with a number."""

    comparison: str
    value: int

    def holds(self, found: int) -> bool:
        """Return whether a number satisfies the bound."""
        return _COMPARISONS[self.comparison](found, self.value)


@dataclass(frozen=True, slots=True)
class Claim:
    """Bounds on a quantity, over the calls that pass `filters`, on `ranks`.

    Attributes:
        ranks: None for each rank, "sum" for all of them together, or rank numbers.
    """

    quantity: str
    bounds: tuple[Bound, ...]
    filters: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    ranks: tuple[int, ...] | str | None = None

    @property
    def scope(self) -> tuple[Any, ...]:
        """Key that is equal for claims that can replace each other."""
        return self.quantity, self.filters, self.ranks

    def holds(self, found: int) -> bool:
        """Return whether a number satisfies all bounds."""
        return all(bound.holds(found) for bound in self.bounds)

    def __str__(self) -> str:
        """Return the claim as in a failure: `all_reduce <= 2 in module layers.*`."""
        return f"{self.quantity} {self.expectation}"

    @property
    def expectation(self) -> str:
        """The claim without its quantity."""
        texts = []
        for bound in self.bounds:
            sign = "" if bound.comparison == "==" else f"{bound.comparison} "
            texts.append(sign + text_of(self.quantity, bound.value))
        where = [
            f"{name} {' or '.join(str(value) or repr('') for value in values)}"
            for name, values in self.filters
        ]
        return " and ".join(texts) + (f" in {' and '.join(where)}" if where else "")


def text_of(quantity: str, value: int) -> str:
    """Format a number of a quantity."""
    if quantity == EXPOSED:
        return f"{100 * value / PER_MILLION:.4g}%"
    return text_of_bytes(value) if quantity in SIZES else str(value)


def claims_of(
    arguments: Mapping[str, Any], *, caller: str, also: Sequence[str] = ()
) -> tuple[Claim, ...]:
    """Return the claims that keyword arguments express.

    Args:
        arguments: the keyword arguments.
        caller: the caller's name, for error messages.
        also: further names to suggest for an unknown name.

    Raises:
        UsageError: an argument is unknown, or a value has no meaning.
    """
    for name in arguments:
        if name not in KNOWN:
            raise UsageError(
                f"{caller} has an unknown argument {name!r}",
                why=f"quantities are {', '.join(QUANTITIES)}, each also with max_ and min_; "
                f"filters are {', '.join(FILTERS)}; others are {', '.join((*_OTHERS, *also))}",
                attempt=_suggestion(name, (*KNOWN, *also)),
            )
    filters = tuple(
        (name, _filter(name, arguments[name], caller)) for name in FILTERS if name in arguments
    )
    ranks = _ranks(arguments.get("ranks"), caller)
    bounds: dict[str, list[Bound]] = {}
    for name, value in arguments.items():
        quantity, comparison = _quantity(name)
        if quantity is not None:
            bounds.setdefault(quantity, []).extend(
                _bounds(name, quantity, comparison, value, caller)
            )
    if EXPOSED in bounds and (filters or ranks == SUM):
        raise UsageError(
            f"{caller} bounds {EXPOSED} of some calls only",
            found=", ".join(name for name in arguments if name in FILTERS or name == "ranks"),
            why=f"{EXPOSED} is the time of a rank in which any of its calls blocked it",
            attempt="a marker of its own, without filters",
        )
    for name in ("none", "exact"):
        if arguments.get(name, True) is not True:
            raise UsageError(
                f"{caller}: {name}={arguments[name]!r}", why="it must be True or omitted"
            )
    if "none" in arguments:
        bounds.setdefault("total", []).append(Bound("==", 0))
    if "exact" in arguments:
        bounds |= {kind: [Bound("==", 0)] for kind in KINDS if kind not in bounds}
    claims = tuple(Claim(name, tuple(each), filters, ranks) for name, each in bounds.items())
    if not claims and (filters or ranks is not None):
        raise UsageError(
            f"{caller} expects nothing",
            found=f"only {', '.join(arguments)}",
            why="these select calls but do not bound their number",
            attempt="add total=0, all_reduce=2 or max_payload='1 MB', for instance",
        )
    return claims


def nearest_first(all_claims: Sequence[Sequence[Claim]]) -> list[Claim]:
    """Merge the claims of several markers, nearest first; a nearer claim replaces its like."""
    nearest: dict[tuple[Any, ...], Claim] = {}
    for claims in all_claims:
        for claim in claims:
            nearest.setdefault(claim.scope, claim)
    return list(nearest.values())


def _quantity(name: str) -> tuple[str | None, str]:
    """Return the quantity that an argument bounds and the comparison; None if it bounds nothing."""
    for prefix, comparison in _BOUNDS.items():
        plain = name.removeprefix(prefix)
        if plain != name:
            return _ALIASES.get(plain, plain), comparison
    plain = _ALIASES.get(name, name)
    return (plain if plain in QUANTITIES else None), "<=" if plain == EXPOSED else "=="


def _bounds(name: str, quantity: str, comparison: str, value: Any, caller: str) -> list[Bound]:
    if quantity == EXPOSED:
        return [Bound(comparison, _share(name, value, caller))]
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return [Bound(comparison, value)]
    if isinstance(value, str):
        low, dots, high = value.partition("..")
        if dots and comparison == "==":
            least, most = _number(quantity, low), _number(quantity, high)
            if least is not None and most is not None and least <= most:
                return [Bound(">=", least), Bound("<=", most)]
        match = _FORM.fullmatch(value)
        number = _number(quantity, match[2]) if match and not dots else None
        if match and number is not None and not (match[1] and comparison != "=="):
            sign = {None: comparison, "=": "=="}.get(match[1], match[1])
            return [Bound(str(sign), number)]
    sized = '"64 KiB", "<=1 MB", "1 kB..2 kB"' if quantity in SIZES else '2, "<=2", ">=1", "1..3"'
    if name != quantity and name not in _ALIASES:
        sized = '"64 KiB"' if quantity in SIZES else "2"
    raise UsageError(
        f"{caller}: {name}={value!r}",
        why=f"{name} takes {'a size' if quantity in SIZES else 'a number of calls'}",
        attempt=f"a form like {sized}",
    )


def _share(name: str, value: Any, caller: str) -> int:
    """Return a share in millionths, given as a fraction or as a text in percent."""
    share = value
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value)
        share = float(match[1]) / 100 if match else None
    if isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= 1:
        return round(share * PER_MILLION)
    raise UsageError(
        f"{caller}: {name}={value!r}",
        found="no share of the time between 0 and 100%",
        why=f"{name} takes a part of the steps' time, in percent or as a fraction",
        attempt='a form like "5%" or 0.05',
    )


def _number(quantity: str, text: str) -> int | None:
    if quantity in SIZES:
        return bytes_of_text(text)
    return int(text) if text.strip().isdecimal() else None


def _filter(name: str, value: Any, caller: str) -> tuple[Any, ...]:
    values = tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    value_type = int if name == "step" else str
    for each in values:
        if not isinstance(each, value_type) or isinstance(each, bool):
            kind = "a number" if value_type is int else "a string"
            raise UsageError(
                f"{caller}: {name}={value!r}", why=f"it takes {kind}, or a list of them"
            )
        if name == "phase" and each not in PHASES:
            raise UsageError(
                f"{caller}: phase={each!r}",
                why=f"a phase is one of {', '.join(PHASES)}",
                attempt=_suggestion(str(each), PHASES),
            )
    return values


def _ranks(value: Any, caller: str) -> tuple[int, ...] | str | None:
    if value is None or value == SUM:
        return value
    ranks = tuple(value) if isinstance(value, (list, tuple, range)) else (value,)
    if ranks and all(isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks):
        return ranks
    raise UsageError(
        f"{caller}: ranks={value!r}",
        why='it takes a rank, a list of ranks, or "sum" for all of them together',
    )


def _suggestion(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"{close[0]}" if close else ""
