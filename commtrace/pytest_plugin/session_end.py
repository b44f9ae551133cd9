"""End of the test session: writes baselines and prints the summary.

Works only on the data in the tests' reports, so it is the same whether this process or workers ran
the tests; only one process ever writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from commtrace.escaping import visible
from commtrace.pytest_plugin import baseline
from commtrace.pytest_plugin.mismatch import text_table
from commtrace.units import counted, text_of_bytes


class SessionReport:
    """Data collected from the reports of recorded tests."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, Any]] = {}
        self.stale: dict[str, list[str]] = {}
        self._written: list[str] = []

    def take(self, report: Any) -> None:
        """Collect the data in a report."""
        self.stale |= getattr(report, "comms_stale", {})
        report_data = getattr(report, "comms", None)
        if report_data is not None:
            self.tests[report.nodeid] = {**report_data, "passed": report.passed}

    def write(self, root: Path) -> None:
        """Write the baselines of the tests that have passed."""
        files: dict[str, dict[str, Any]] = {}
        for report_data in self.tests.values():
            if report_data["passed"] and report_data["keeps"]:
                files.setdefault(report_data["path"], {})[report_data["test"]] = report_data[
                    "entry"
                ]
        for path, entries in sorted(files.items()):
            if baseline.write(root / path, entries):
                self._written.append(f"{path}: {counted(len(entries), 'test')}")

    def print_to(self, terminal: Any, *, summary: bool) -> None:
        """Print written baselines, stale entries, saved traces and, if asked for, the summary."""
        lines = [f"baseline written: {each}" for each in self._written]
        for path, names in sorted(self.stale.items()):
            for name in names:
                lines.append(f"baseline without a test: {path}: {name}; remove the entry")
        lines += [
            f"saved: {report_data['saved']}"
            for report_data in self.tests.values()
            if "saved" in report_data
        ]
        if summary and self.tests:
            lines += ["per rank:", *_table(self.tests).splitlines()]
        if not lines:
            return
        terminal.section("communication")
        for line in lines:
            terminal.line(visible(line))


def _table(tests: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, report_data in tests.items():
        places = report_data["entry"]["places"]
        sums = {m: sum(place[m] for place in places) for m in ("calls", "payload_bytes")}
        kinds: dict[str, float] = {}
        for place in places:
            kinds[place["kind"]] = kinds.get(place["kind"], 0) + place["calls"]
        wire = sum(place["wire_bytes"] for place in places)
        lines.append(
            (
                f"{sums['calls']:g}",
                text_of_bytes(sums["payload_bytes"]),
                text_of_bytes(wire),
                str(report_data["entry"]["ranks"]),
                ", ".join(f"{kind} {calls:g}" for kind, calls in sorted(kinds.items())),
                name,
            )
        )
    return text_table(("calls", "payload", "wire", "ranks", "kinds", "test"), lines)
