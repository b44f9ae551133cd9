"""The pytest plugin: what a test communicates, as something that it can expect.

    @pytest.mark.comms(all_reduce=2, total=2, max_payload="1 MB")
    def test_step():
        train_step()

The hooks are here; the rest is loaded where a test is recorded, so that a run without such a test
pays nothing for the plugin. `judged` is one test, `recorded` its recording, `expectation` what can
be expected, `verdict` the texts of failures, `baseline` the files, `fixture` what tests ask.
docs/testing.md tells people.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from commtrace.errors import CommtraceError, require_torch
from commtrace.pytest_plugin import options

if TYPE_CHECKING:
    from commtrace.pytest_plugin.fixture import Comms
    from commtrace.pytest_plugin.session_end import Gathered

_MARKER = "comms"
_judged = pytest.StashKey[Any]()
_stale = pytest.StashKey[dict[str, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    options.register(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and refuse values that no option has."""
    config.addinivalue_line(
        "markers",
        "comms(all_reduce=2, total='<=5', max_payload='1 MB', module='layers.*', ...): record what "
        "the test communicates, and fail it where that is not as expected",
    )
    for option in options.OPTIONS:
        with _as_usage_error():
            options.setting(config, option.name)
    config.pluginmanager.register(_AtTheEnd(config), "commtrace-at-the-end")


class _as_usage_error:
    """An error of ours as one that pytest prints without a traceback."""

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
    """Find the entries of baselines that no test has, before tests are left out."""
    if options.setting(config, "update") or options.setting(config, "baseline") != options.OFF:
        from commtrace.pytest_plugin.stale_baselines import stale_entries

        with _as_usage_error():
            config.stash[_stale] = stale_entries(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Read what is expected of the test."""
    if not _is_recorded(item):
        return
    refused = ""
    try:
        require_torch("recording a test")
        from commtrace.pytest_plugin.verdict import Verdict, plan_of

        item.stash[_judged] = Verdict(item, plan_of(item))
    except CommtraceError as error:
        refused = str(error)
    if refused:
        pytest.fail(refused, pytrace=False)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record the body of the test, and judge it."""
    judged = item.stash.get(_judged, None)
    if judged is None:
        return (yield)
    judged.begin()
    try:
        result = yield
    except BaseException as error:
        judged.end(error)
        raise
    failures = getattr(item, "_excinfo", None)  # where a unittest.TestCase keeps its own
    judged.end(failures[0].value if failures else None)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, Any]:
    """Give the report what the session's end needs, as plain data."""
    report = yield
    judged = item.stash.get(_judged, None)
    if judged is not None and call.when == "call" and judged.news:
        report.comms = judged.news
    if _stale in item.config.stash:
        report.comms_stale = item.config.stash[_stale]
        del item.config.stash[_stale]
    return report


class _AtTheEnd:
    """Takes what the reports carry, of tests that ran here or in workers, and tells it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._gathered: Gathered | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a report carries."""
        if hasattr(report, "comms") or hasattr(report, "comms_stale"):
            from commtrace.pytest_plugin.session_end import Gathered

            self._gathered = self._gathered or Gathered()
            self._gathered.take(report)

    def pytest_sessionfinish(self) -> None:
        """Write the baselines, in the one process that all reports come to."""
        is_worker = hasattr(self._config, "workerinput")
        if self._gathered and options.setting(self._config, "update") and not is_worker:
            with _as_usage_error():
                self._gathered.write(self._config.rootpath)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Tell."""
        if self._gathered:
            summary = options.setting(self._config, "summary")
            self._gathered.tell(terminalreporter, summary=summary)


@pytest.fixture
def comms(request: pytest.FixtureRequest) -> Comms:
    """What the test communicates while it runs: `comms.counts()`, `comms.expect(all_reduce=2)`."""
    from commtrace.pytest_plugin.fixture import Comms

    return Comms(request.node.stash[_judged].recorded)
