"""pytest plugin: assertions about the communication of a test.

    @pytest.mark.comms(all_reduce=2, total=2, max_payload="1 MB")
    def test_step():
        train_step()

The hooks are here. Everything else is imported once a test is recorded, so that a run without such
a test pays nothing for the plugin. Marker `same_values` compares the values of a test in several
layouts (`same_values`, `layouts`). `verdict` evaluates the expectations of a test, `recorded` is
its recording, `expectation` the claims, `mismatch` the texts of failures, `baseline` the files, and
`fixture` the interface for tests. User documentation: docs/testing.md.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.errors import CommtraceError, require_torch
from commtrace.pytest_plugin import options

if TYPE_CHECKING:
    from commtrace.pytest_plugin.fixture import Comms
    from commtrace.pytest_plugin.layouts import GivenLayout
    from commtrace.pytest_plugin.session_end import SessionReport

_MARKER, _SAME_VALUES = "comms", "same_values"
_FOUND = re.compile(r"does not hold\n  found: (.*)")
"""The numbers in the text of a failed expectation (`mismatch`)."""
_verdict = pytest.StashKey[Any]()
_same_values = pytest.StashKey[Any]()
_stale = pytest.StashKey[dict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    options.register(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and reject invalid option values."""
    config.addinivalue_line(
        "markers",
        "comms(all_reduce=2, total='<=5', max_payload='1 MB', module='layers.*', ...): record the "
        "communication of the test, and fail it if it is not as expected",
    )
    config.addinivalue_line(
        "markers",
        "same_values(layouts=[{}, {'tp': 2}], values='op', reference=False, ranks=None, "
        "timeout_s=120): run the test in several layouts, and fail it if its tensors differ from "
        "the first layout's",
    )
    for option in options.OPTIONS:
        with _as_usage_error():
            options.setting(config, option.name)
    config.pluginmanager.register(_AtTheEnd(config), "commtrace-at-the-end")


class _as_usage_error:
    """Convert a commtrace error into an error that pytest prints without a traceback."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, CommtraceError):
            raise pytest.UsageError(str(error)) from None


def _is_recorded(item: pytest.Item) -> bool:
    return (
        _MARKER in getattr(item, "fixturenames", ())
        or item.get_closest_marker(_MARKER) is not None
        or options.setting(item.config, "all")
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Find baseline entries without a test, before tests are deselected."""
    if options.setting(config, "update") or options.setting(config, "baseline") != options.OFF:
        from commtrace.pytest_plugin.baseline import stale_entries

        with _as_usage_error():
            config.stash[_stale] = stale_entries(config, items)


# Before the fixtures are set up, of which `comms` looks for the verdict.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Read the expectations of the test, and the layouts that it runs in."""
    has_layouts = item.get_closest_marker(_SAME_VALUES) is not None
    if not has_layouts and not _is_recorded(item):
        return
    refused = ""
    try:
        require_torch("recording a test")
        if has_layouts:
            from commtrace.pytest_plugin import same_values

            item.stash[_same_values] = same_values.plan_of(item)
        if _is_recorded(item):
            from commtrace.pytest_plugin.verdict import Verdict, plan_of

            item.stash[_verdict] = Verdict(item, plan_of(item))
    except CommtraceError as error:
        refused = str(error)
    if refused:
        pytest.fail(refused, pytrace=False)


# The innermost wrapper, so that the work of other plugins is not recorded.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record the body of the test, and check its expectations."""
    verdict = item.stash.get(_verdict, None)
    if verdict is None:
        return (yield)
    verdict.begin()
    try:
        result = yield
    except BaseException as error:
        verdict.end(error)
        raise
    failures = getattr(item, "_excinfo", None)  # where unittest.TestCase keeps its failure
    verdict.end(failures[0].value if failures else None)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run the test in each layout of the marker, and compare its values."""
    same_values = pyfuncitem.stash.get(_same_values, None)
    if same_values is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names if name != "layout"}
    failure = ""
    try:
        same_values.check(pyfuncitem.obj, arguments)
    except CommtraceError as error:
        failure = str(error)
    except AssertionError as error:
        if type(error).__name__ != "ValuesDifferError":
            raise
        failure = str(error)
    if failure:
        pytest.fail(failure, pytrace=False)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Attach to the report, as plain data, what the session's end needs."""
    report = yield
    verdict = item.stash.get(_verdict, None)
    if verdict is not None and call.when == "call":
        if verdict.report_data:
            report.comms = verdict.report_data
        _shorten(getattr(report.longrepr, "reprcrash", None))
    if _stale in item.config.stash:
        report.comms_stale = item.config.stash[_stale]
        del item.config.stash[_stale]
    return report


def _shorten(crash: Any) -> None:
    """Let pytest's one-line summary of a failed expectation be its numbers."""
    if crash is not None and (numbers := _FOUND.search(crash.message)):
        crash.message = numbers[1]


class _AtTheEnd:
    """Collects the data in reports, of tests run here or in workers, and prints it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._session_report: SessionReport | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the data in a report."""
        if hasattr(report, "comms") or hasattr(report, "comms_stale"):
            from commtrace.pytest_plugin.session_end import SessionReport

            self._session_report = self._session_report or SessionReport()
            self._session_report.take(report)

    def pytest_sessionfinish(self) -> None:
        """Write the baselines, in the process that receives all reports."""
        is_worker = hasattr(self._config, "workerinput")
        if self._session_report and options.setting(self._config, "update") and not is_worker:
            with _as_usage_error():
                self._session_report.write(self._config.rootpath)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the summary."""
        if self._session_report:
            summary = options.setting(self._config, "summary")
            self._session_report.print_to(terminalreporter, summary=summary)


@pytest.fixture
def comms(request: pytest.FixtureRequest) -> Comms:
    """Communication of the test so far: `comms.counts()`, `comms.expect(all_reduce=2)`."""
    from commtrace.pytest_plugin.fixture import Comms

    return Comms(request.node.stash[_verdict].recorded)


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> GivenLayout:
    """Layout in which the test runs, of the marker `same_values`: `layout.mesh`, `layout.sizes`."""
    if request.node.get_closest_marker(_SAME_VALUES) is None:
        pytest.fail(
            "the fixture layout is of tests with the marker same_values\n"
            "  try: @pytest.mark.same_values(layouts=[{}, {'tp': 2}])",
            pytrace=False,
        )
    from commtrace.pytest_plugin.layouts import GivenLayout

    return GivenLayout({})
