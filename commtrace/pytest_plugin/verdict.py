"""Verdict of a test: the result of checking its recording against its expectations.

`plan_of` reads markers and settings before the test. `Verdict` records the body and then raises if
it communicated otherwise than expected. Data for the controller, which may not be the process
that ran the test, is attached to pytest's report as plain values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commtrace.errors import CommtraceError, UsageError
from commtrace.escaping import visible
from commtrace.pytest_plugin import baseline
from commtrace.pytest_plugin.expectation import Claim, claims_of, nearest_first
from commtrace.pytest_plugin.fixture import consistent, saved, text_of_call
from commtrace.pytest_plugin.meshes import DeviceMesh
from commtrace.pytest_plugin.mismatch import (
    ExpectationError,
    IncompleteRecordingError,
    check,
    text_of_observed,
)
from commtrace.pytest_plugin.observed import Observed, observed_in
from commtrace.pytest_plugin.options import OF_MARKER, OFF, setting
from commtrace.pytest_plugin.parting import text_of_partings
from commtrace.pytest_plugin.recorded import RecordedTest

MARKER = "comms"
_NAME = f"@pytest.mark.{MARKER}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Expectations of a test, and the options of its recording."""

    claims: tuple[Claim, ...]
    caller: str
    detail: str
    stacks: bool
    timeout: int
    consistent: bool
    must_be_several: bool
    baseline: str
    must_be_seen: bool
    rows: int


def plan_of(item: pytest.Item) -> Plan:
    """Return the plan from a test's markers, the command line and the ini file.

    Raises:
        UsageError: an argument or option is invalid.
    """
    marked: dict[str, Any] = {}
    all_claims: list[Sequence[Claim]] = []
    caller: list[str] = []
    at_node: dict[Any, set[Any]] = {}
    for node, mark in _markers(item):
        if mark.args:
            raise UsageError(
                f"{_NAME} has positional arguments",
                found=", ".join(map(repr, mark.args)),
                attempt=f"{_NAME}(all_reduce=2), for instance",
            )
        for name in OF_MARKER:
            if name in mark.kwargs:
                marked.setdefault(name, mark.kwargs[name])
        arguments = {name: each for name, each in mark.kwargs.items() if name not in OF_MARKER}
        claims = claims_of(arguments, caller=_NAME, also=OF_MARKER)
        scopes = at_node.setdefault(node, set())
        duplicates = [claim for claim in claims if claim.scope in scopes]
        if duplicates:
            raise UsageError(
                f"{_NAME} bounds {duplicates[0].quantity} twice",
                found=str(duplicates[0]),
                why="both markers apply to the same calls of the same test",
            )
        scopes |= {claim.scope for claim in claims}
        all_claims.append(claims)
        caller += [text_of_call(_NAME, arguments)] if claims else []
    config = item.config
    claims = tuple(nearest_first(all_claims))
    mode = setting(config, "baseline", marked)
    is_required = bool(claims) or MARKER in getattr(item, "fixturenames", ()) or mode != OFF
    return Plan(
        claims=claims,
        caller=" and ".join(caller),
        detail=setting(config, "detail", marked),
        stacks=setting(config, "stacks", marked),
        timeout=setting(config, "timeout", marked),
        consistent=setting(config, "consistent", marked),
        must_be_several="consistent" in marked,
        baseline=mode,
        must_be_seen=is_required,
        rows=setting(config, "rows"),
    )


def _markers(item: pytest.Item) -> list[tuple[Any, pytest.Mark]]:
    """Return the markers of a test, nearest first: its parameters' markers precede its own."""
    of_parameters = getattr(getattr(item, "callspec", None), "marks", ())
    marked = [
        ("parameters" if any(mark is each for each in of_parameters) else node, mark)
        for node, mark in item.iter_markers_with_node(MARKER)
    ]
    return sorted(marked, key=lambda each: each[0] != "parameters")


class Verdict:
    """Recording and verdict of a test: `begin` before its body, `end` after it."""

    def __init__(self, item: pytest.Item, plan: Plan) -> None:
        self._item = item
        self._config = item.config
        self._plan = plan
        self._keeps_baseline = not (
            plan.baseline == OFF and any("baseline" in m.kwargs for m in item.iter_markers(MARKER))
        )
        self.recorded = RecordedTest(detail=plan.detail, stacks=plan.stacks, timeout_s=plan.timeout)
        self.report_data: dict[str, Any] = {}

    def begin(self) -> None:
        """Start recording."""
        arguments = getattr(self._item, "funcargs", {}).values()
        self.recorded.begin(each for each in arguments if isinstance(each, DeviceMesh))

    def end(self, error: BaseException | None) -> None:
        """Stop recording, and raise the failure of a test whose body passed."""
        self.recorded.end()
        try:
            found = observed_in(self.recorded.traces())
            self.report_data = self._report_data(found)
            failure = self.recorded.hang()
            if failure is None and error is None:
                failure = self._failure(found)
            if failure is not None or _is_failure(error):
                self._save()
            if error is not None and not isinstance(error, ExpectationError):
                self._item.add_report_section(
                    "call", "communication", text_of_observed(found, self._plan.rows)
                )
                parted = text_of_partings(self.recorded.traces().values())
                if parted and failure is None:
                    self._item.add_report_section("call", "where the ranks parted", parted)
        finally:
            self.recorded.forget()
        if failure is not None:
            text = str(failure)
            if "saved" in self.report_data:
                text += f"\n\nsaved in {visible(self.report_data['saved'])}"
            pytest.fail(text, pytrace=False)

    def _failure(self, found: Observed) -> CommtraceError | None:
        """Return the first failure; gaps come first, since they make all results unreliable."""
        plan = self._plan
        for gap in self.recorded.gaps() if plan.must_be_seen else ():
            if not plan.claims or gap.concerns(plan.claims):
                return IncompleteRecordingError(
                    f"{plan.caller or 'the communication of the test'} cannot be checked",
                    why=gap.why,
                    attempt="see docs/testing.md for the recorded processes",
                )
        failure = check(plan.claims, found, caller=plan.caller, rows=plan.rows)
        if failure is not None:
            return failure
        try:
            if plan.consistent and (plan.must_be_several or len(found.ranks) > 1):
                consistent(self.recorded.traces())
            return self._grown()
        except CommtraceError as failure:
            return failure

    def _grown(self) -> ExpectationError | None:
        if self._plan.baseline == OFF or setting(self._config, "update"):
            return None
        path = self._baseline_path()
        return baseline.compare(
            baseline.read(path).get(self.report_data["test"]),
            self.report_data["entry"],
            self._plan.baseline,
            test=self._item.nodeid,
            path=self.report_data["path"],
        )

    def _baseline_path(self) -> Path:
        folder = setting(self._config, "baseline_dir")
        return baseline.path_of(self._item.path, folder, self._config.rootpath)

    def _report_data(self, found: Observed) -> dict[str, Any]:
        path, root = self._baseline_path(), self._config.rootpath
        inside = path.relative_to(root) if path.is_relative_to(root) else path
        return {
            "path": inside.as_posix(),
            "test": baseline.test_name(self._item),
            "entry": baseline.entry_of(found),
            "keeps": self._keeps_baseline,
        }

    def _save(self) -> None:
        folder = setting(self._config, "report")
        if not folder:
            return
        from commtrace.analyze import load
        from commtrace.report import write_report

        # File systems limit the length of a name, usually to 255 bytes.
        name = re.sub(r"[^\w.=-]+", "_", self._item.nodeid).strip("_")[-120:]
        place = self._config.rootpath / folder / name
        paths = saved(self.recorded.traces(), place / "run.json")
        for path in paths:
            write_report(load(path), path.with_suffix(".html"))
        self.report_data["saved"] = str(place)


def _is_failure(error: BaseException | None) -> bool:
    """Return whether an exception fails a test; `pytest.fail` raises no subclass of `Exception`."""
    if isinstance(error, pytest.fail.Exception):
        return not isinstance(error, pytest.xfail.Exception)
    return isinstance(error, Exception)
