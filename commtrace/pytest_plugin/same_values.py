"""Marker `same_values`: a test runs in several layouts, and its tensors must be the same in all.

    @pytest.mark.same_values(layouts=[{}, {"tp": 2}, {"dp": 2, "tp": 2}])
    def test_model(layout):
        model = parallelize(Model(), layout.mesh)
        model(batch).sum().backward()

The first layout is taken for right. Every other layout is compared with it, and a failure has the
first wrong tensor of each that differs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from commtrace.analyze.comparisons.compared import compare
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.values import evidence, limits, name_of, title
from commtrace.errors import CommtraceError, UsageError
from commtrace.escaping import visible
from commtrace.process_options import VALUE_LEVELS
from commtrace.pytest_plugin.layouts import LayoutRun, Runner, name_of_layout
from commtrace.schema import INPUT, PARAMETER
from commtrace.units import counted

MARKER = "same_values"
FIXTURE = "layout"
_NAME = f"@pytest.mark.{MARKER}"
_EXAMPLE = f'{_NAME}(layouts=[{{}}, {{"tp": 2}}])'
_KNOWN = ("layouts", "values", "reference", "ranks", "timeout_s")
TIMEOUT_S = 120.0


class ValuesDifferError(AssertionError):
    """A test has other values in some layout than in the first."""


@dataclass(frozen=True, slots=True)
class SameValues:
    """Arguments of the marker.

    Attributes:
        layouts: Sizes of mesh axes of each layout; the first is taken for right.
        values: Level of the fingerprints, "module" or "op".
        reference: The first layout runs in float64, too, which decides what rounding explains.
        runner: Runner of the ranks; None for processes.
        timeout_s: Deadline of a layout.
    """

    layouts: tuple[Mapping[str, int], ...]
    values: str
    reference: bool
    runner: Runner | None
    timeout_s: float

    def check(self, body: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Run a test in all layouts.

        Raises:
            ValuesDifferError: A tensor is wrong, or the test fails, in some layout.
        """
        first, *others = self.layouts
        right = self._recorded(first, body, arguments)
        exact = None
        if self.reference:
            exact = self._recorded(first, body, arguments, is_exact=True)
            _check_same_program(right, exact)
        failures = {}
        for sizes in others:
            if text := self._difference(sizes, right, exact, body, arguments):
                failures[name_of_layout(sizes)] = text
        if failures:
            num = f"{len(failures)} of {counted(len(others), 'layout')}"
            head = f"{num} differ{'s' * (len(failures) == 1)} from {name_of_layout(first)}"
            parts = [f"layout {name}: {text}" for name, text in failures.items()]
            raise ValuesDifferError("\n\n".join([f"{_NAME}: {head}", *parts]))

    def _difference(
        self,
        sizes: Mapping[str, int],
        right: Frames,
        exact: Frames | None,
        body: Callable[..., Any],
        arguments: Mapping[str, Any],
    ) -> str:
        """Return the fault of a layout as text, or its error; empty if the layouts agree."""
        try:
            found = compare(right, self._recorded(sizes, body, arguments), exact)
        except CommtraceError as error:
            return str(error)
        except Exception as error:  # of the test
            return "".join(traceback.format_exception_only(error)).rstrip()
        if found.fault is None:
            return ""
        lines = [*evidence(found.fault), *limits(found)]
        return "\n  ".join(map(visible, [title(found.fault, name_of_layout(sizes)), *lines]))

    def _recorded(
        self,
        sizes: Mapping[str, int],
        body: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        is_exact: bool = False,
    ) -> Frames:
        run = LayoutRun(sizes, self.values, is_exact, self.timeout_s, self.runner)
        return run.record(body, arguments)


def _check_same_program(right: Frames, exact: Frames) -> None:
    """Check that the run in float64 starts from the parameters and inputs of the first layout.

    Raises:
        UsageError: It computes something else, so that it would explain any difference.
    """
    pairs = compare(exact, right).pairs
    given = pairs[pairs["role"].isin([PARAMETER, INPUT]) & pairs["is_wrong"]]
    if len(given):
        raise UsageError(
            f"{_NAME}: reference=True needs a test that computes the same in float64",
            found=f"{name_of(given.iloc[0].to_dict())} differs from that in the first layout",
            why="random numbers or data of the test depend on the default dtype",
            attempt="create data in float32 and convert it, or omit reference",
        )


def plan_of(item: pytest.Item) -> SameValues | None:
    """Return the arguments of a test's nearest marker; None if it has none.

    Raises:
        UsageError: An argument is invalid, or the test does not take the fixture `layout`.
    """
    mark = item.get_closest_marker(MARKER)
    if mark is None:
        return None
    if mark.args:
        raise UsageError(
            f"{_NAME} has positional arguments",
            found=", ".join(map(repr, mark.args)),
            why="its arguments have names",
            attempt=_EXAMPLE,
        )
    for name in mark.kwargs:
        if name not in _KNOWN:
            raise UsageError(
                f"{_NAME} has an unknown argument {name!r}",
                found=f"{name}={mark.kwargs[name]!r}",
                why=f"its arguments are {', '.join(_KNOWN)}",
                attempt=_EXAMPLE,
            )
    if not isinstance(item, pytest.Function) or FIXTURE not in item.fixturenames:
        raise UsageError(
            f"{_NAME} cannot run {item.name}",
            found=f"no argument {FIXTURE}",
            why="the test must build its model in the layout that it is given",
            attempt=f"def {item.name.partition('[')[0]}({FIXTURE}): ...",
        )
    given = mark.kwargs
    return SameValues(
        _layouts(given.get("layouts")),
        _one_of("values", given.get("values", VALUE_LEVELS[-1]), VALUE_LEVELS),
        _one_of("reference", given.get("reference", False), (False, True)),
        _runner(given.get("ranks")),
        _timeout(given.get("timeout_s", TIMEOUT_S)),
    )


def _layouts(given: Any) -> tuple[Mapping[str, int], ...]:
    if not isinstance(given, (list, tuple)) or len(given) < 2:
        raise UsageError(
            f"{_NAME} has nothing to compare",
            found="no layouts" if not given else f"layouts={given!r}",
            why="a comparison needs two layouts; the first is taken for right",
            attempt=_EXAMPLE,
        )
    layouts = tuple(map(_layout, given))
    for place, layout in enumerate(layouts):
        if layout in layouts[:place]:
            raise UsageError(
                f"{_NAME} has a layout twice",
                found=f"{dict(layout)!r}",
                why="it would be compared with itself",
                attempt=_EXAMPLE,
            )
    return layouts


def _layout(given: Any) -> Mapping[str, int]:
    pairs = list(given.items()) if isinstance(given, Mapping) else given
    is_of_pairs = isinstance(pairs, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) and pair[0]
        for pair in pairs
    )
    if not is_of_pairs:
        raise _layout_error(given, "a layout has the size of each mesh axis by name")
    axes = [axis for axis, _ in pairs]
    if repeated := {axis for axis in axes if axes.count(axis) > 1}:
        raise _layout_error(given, f"axis {min(repeated)} occurs twice")
    for axis, size in pairs:
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise _layout_error(given, f"the size of axis {axis} must be a positive integer")
    return dict(pairs)


def _layout_error(given: Any, why: str) -> UsageError:
    return UsageError(
        f"{_NAME} has an invalid layout", found=f"{given!r}", why=why, attempt='{"dp": 2, "tp": 2}'
    )


def _one_of(name: str, value: Any, choices: Sequence[Any]) -> Any:
    if value in choices and type(value) is type(choices[0]):
        return value
    raise UsageError(
        f"{_NAME} has an invalid argument {name}",
        found=f"{name}={value!r}",
        why=f"{name} is {' or '.join(map(repr, choices))}",
        attempt=f"{name}={choices[-1]!r}",
    )


def _runner(value: Any) -> Runner | None:
    if value is None or callable(value):
        return value
    raise UsageError(
        f"{_NAME} has an invalid argument ranks",
        found=f"ranks={value!r}",
        why="ranks is a function that runs a function on a number of ranks",
        attempt="ranks=run_threads of dtensor_core.testing, or none, for processes",
    )


def _timeout(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return float(value)
    raise UsageError(
        f"{_NAME} has an invalid argument timeout_s",
        found=f"timeout_s={value!r}",
        why="it is a positive number of seconds",
        attempt=f"timeout_s={TIMEOUT_S:g}",
    )
