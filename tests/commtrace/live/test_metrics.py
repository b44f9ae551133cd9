"""Metrics as they are scraped: equal to the tables of the run, with bounded labels."""

from __future__ import annotations

import http.client
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import parser as plain
from prometheus_client.openmetrics import parser as openmetrics

from commtrace.analyze import load
from commtrace.analyze.consistency import consistency
from commtrace.analyze.waits.stragglers import stragglers
from commtrace.errors import UsageError
from commtrace.event import GroupRow
from commtrace.live import Snapshot, metrics
from commtrace.live.metrics import METRICS, RunMetrics
from commtrace.live.snapshot import GroupTraffic, LiveProblem, RankState
from commtrace.tracefile import read_trace
from commtrace_cli.serving import serving_metrics
from tests.commtrace.live.growing import SECOND, Rank, Run

ROOT = Path(__file__).parents[3]
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
PARSERS = {
    "application/openmetrics-text; version=1.0.0; charset=utf-8": openmetrics,
    "text/plain; version=0.0.4; charset=utf-8": plain,
}
ALWAYS = {each.sample_name for each in METRICS if each.is_always}
DOCUMENT = (ROOT / "docs" / "watching.md").read_text()
DASHBOARD = json.loads((ROOT / "examples" / "grafana" / "commtrace.json").read_text())

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run(tmp_path / "RUN.comm") as run:
        yield run


def answered(url: str, accept: str = OPENMETRICS) -> tuple[int, str, bytes]:
    """Status, content type and body of a scrape."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request("GET", address.path, headers={"Accept": accept})
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read()
    finally:
        connection.close()


def samples_of(content_type: str, body: bytes) -> Samples:
    """The samples of a text; none occurs twice."""
    families = PARSERS[content_type].text_string_to_metric_families(body.decode())
    found = [(each.name, frozenset(each.labels.items()), each.value)
             for family in families for each in family.samples]  # fmt: skip
    assert max(Counter((name, labels) for name, labels, _ in found).values(), default=1) == 1
    return {(name, labels): value for name, labels, value in found}


def scraped(snapshot: Snapshot | None, accept: str = OPENMETRICS) -> Samples:
    """The samples of a snapshot, over HTTP."""
    served = RunMetrics()
    if snapshot is not None:
        served.update(snapshot)
    with serving_metrics(served, "127.0.0.1", 0) as url:
        status, content_type, body = answered(url, accept)
    assert status == 200
    return samples_of(content_type, body)


def of(samples: Samples, name: str) -> dict[Any, float]:
    """Values of a metric by its labels in the order of `METRICS`; a single label stands alone."""
    (metric,) = (each for each in METRICS if each.sample_name == name)
    found = {}
    for (each, labels), value in samples.items():
        if each == name:
            values = tuple(dict(labels)[label] for label in metric.labels)
            found[values[0] if len(values) == 1 else values] = value
    return found


def training(run: Run, num_ranks: int = 4) -> list[Rank]:
    """Ranks of a mesh with axes dp and tp, after 20 steps; rank 1 works longer than the others."""
    axes = {"dp": ("1", "0,2"), "tp": ("2", "0,1,2,3")}
    groups = [GroupRow(name, "", ranks, len(ranks.split(",")), axis, "gloo")
              for axis, (name, ranks) in axes.items()]  # fmt: skip
    ranks = [run.start(number, num_ranks, groups=groups) for number in range(num_ranks)]
    for step in range(20):
        begin = run.time.seconds
        others = [each for each in ranks if each.number != 1]
        calls = [(each, each.issue("all_gather", "2", wire_bytes=300)) for each in others]
        run.pass_(0.3)
        calls.append((ranks[1], ranks[1].issue("all_gather", "2", wire_bytes=300)))
        run.pass_(0.1 + step / 1000)
        for rank, call in calls:
            rank.end(call)
        for rank in ranks:
            if rank.number in (0, 2):
                rank.end(rank.issue("all_reduce", "1", wire_bytes=1000 + rank.number))
            rank.step(step, begin, run.time.seconds + rank.number / 1000)
    run.flush()
    return ranks


@pytest.mark.parametrize("accept", [OPENMETRICS, "text/plain;version=0.0.4", "", "*/*"])
def test_the_values_are_those_of_the_tables(run: Run, accept: str) -> None:
    training(run)
    frames = load(read_trace(run.folder))
    comm, steps = frames.comm.reset_index(), frames.steps.reset_index()
    samples = scraped(run.observer().refresh(), accept)

    axis = {"1": "dp", "2": "tp"}
    sent = comm.groupby([comm["kind"].astype(str), comm["group"].astype(str).map(axis)])
    assert of(samples, "commtrace_sent_bytes_total") == sent["wire_bytes"].sum().to_dict()
    assert of(samples, "commtrace_calls_total") == sent.size().to_dict()
    by_rank = comm.groupby(comm["rank"].astype(str))["wire_bytes"].sum().to_dict()
    assert of(samples, "commtrace_rank_sent_bytes_total") == by_rank

    last = steps[steps["step"] == steps["step"].max()].set_index("rank")
    lasted = (last["end_ns"] - last["start_ns"]) / SECOND
    by_rank = {str(rank): value for rank, value in lasted.items()}
    assert of(samples, "commtrace_rank_step_duration_seconds") == pytest.approx(by_rank)
    assert of(samples, "commtrace_rank_step") == dict.fromkeys(by_rank, 19)
    assert of(samples, "commtrace_step") == {(): 19}
    durations = (steps["end_ns"] - steps["start_ns"]).groupby(steps["step"]).median() / SECOND
    mean = durations[-10:].mean()
    assert of(samples, "commtrace_step_duration_seconds") == {(): pytest.approx(mean, rel=1e-6)}

    end = run.time.ns // SECOND * SECOND
    begin = end - 10 * SECOND
    blocked_until = comm["issue_ns"] + comm["blocked_ns"]
    within = (blocked_until.clip(upper=end) - comm["issue_ns"].clip(lower=begin)).clip(lower=0)
    started = frames.ranks["start_ns"].max()
    shares = within.groupby(comm["rank"].astype(str)).sum() / (end - max(begin, started))
    assert of(samples, "commtrace_rank_blocked_ratio") == pytest.approx(shares.to_dict(), abs=0.02)
    assert of(samples, "commtrace_blocked_ratio") == {(): pytest.approx(shares.mean(), abs=0.02)}
    assert 0.2 < shares.min() < 0.6 < shares.max()

    assert of(samples, "commtrace_ranks")["running"] == of(samples, "commtrace_world_size")[()] == 4
    assert of(samples, "commtrace_run_info") == {"RUN.comm": 1}
    at_s = of(samples, "commtrace_snapshot_timestamp_seconds")[()]
    assert at_s == pytest.approx(run.time.ns / SECOND)


def test_the_late_rank_is_that_of_table_stragglers(run: Run) -> None:
    ranks = run.start_all(3)
    run.pass_(1)
    for _ in range(8):
        calls = [(rank, rank.issue()) for rank in ranks if rank.number != 1]
        run.pass_(0.9)
        for rank, call in [*calls, (ranks[1], ranks[1].issue())]:
            rank.end(call)
    run.flush()
    table = stragglers(load(read_trace(run.folder)))
    delays = table.groupby("rank")["delay_ns"].sum() / (10 * SECOND)
    late = of(scraped(run.observer().refresh()), "commtrace_rank_late_ratio")
    assert late == pytest.approx({str(rank): share for rank, share in delays.items()})
    assert late == {"1": pytest.approx(0.72)}


def hanging(run: Run) -> None:
    ranks = training(run)
    for rank in ranks:
        if rank.number != 3:
            rank.issue("all_gather", "2")
    run.flush()
    run.pass_(40)


def test_a_hang_names_the_ranks_that_check_blames(run: Run) -> None:
    hanging(run)
    faults = consistency(load(read_trace(run.folder)))
    (blamed,) = faults.loc[faults["is_fault"], "ranks"]
    samples = scraped(run.observer().refresh())
    found = of(samples, "commtrace_problem_ranks")
    assert found == {("hang", str(rank)): 1 for rank in blamed.split(",")} == {("hang", "3"): 1}
    problems = of(samples, "commtrace_problem")
    assert {name for name, value in problems.items() if value} == {"hang"}
    assert set(problems.values()) == {0, 1}
    assert of(samples, "commtrace_problem_seconds") == {"hang": pytest.approx(40)}
    assert of(samples, "commtrace_group_missing_ranks") == {"tp": 1}
    assert of(samples, "commtrace_group_wait_seconds") == {"tp": pytest.approx(40)}
    stuck = of(samples, "commtrace_rank_stuck_seconds")
    assert stuck == pytest.approx({"0": 40, "1": 40, "2": 40})  # rank 3 is in no call


def test_before_the_first_step_and_rank_unknown_values_are_absent(run: Run) -> None:
    assert scraped(None) == {}
    run.folder.mkdir()
    observer = run.observer()
    assert {name for name, _ in scraped(observer.refresh())} == ALWAYS | {"commtrace_ranks"}
    for rank in run.start_all(2):
        rank.flush()
    run.pass_(2)
    samples = scraped(observer.refresh())
    names = {name for name, _ in samples}
    assert not {name for name in names if "step" in name or "late" in name or "stuck" in name}
    assert of(samples, "commtrace_sent_bytes_total") == {}
    assert of(samples, "commtrace_rank_sent_bytes_total") == {"0": 0, "1": 0}  # no call has ended
    assert of(samples, "commtrace_problem")["hang"] == 0


def test_a_sum_with_a_call_of_unknown_size_is_absent(run: Run) -> None:
    first, second = run.start_all(2)
    for rank, size in ((first, -1), (first, 70), (second, 70)):
        rank.end(rank.issue(wire_bytes=size))
        rank.end(rank.issue("barrier", wire_bytes=0))
    run.flush()
    samples = scraped(run.observer().refresh())
    assert of(samples, "commtrace_calls_total") == {("all_reduce", "0"): 3, ("barrier", "0"): 3}
    assert of(samples, "commtrace_sent_bytes_total") == {("barrier", "0"): 0}
    assert of(samples, "commtrace_rank_sent_bytes_total") == {"1": 70}


def test_totals_grow_with_the_run_and_begin_anew_with_the_next(run: Run) -> None:
    rank = run.start(0, 1, run={"run_id": "one", "attempt": 0})
    observer = run.observer()
    for number in range(1, 4):
        rank.end(rank.issue())
        run.pass_(90)
        run.flush()
        total = of(scraped(observer.refresh()), "commtrace_calls_total")
        assert total == {("all_reduce", "0"): number}
    run.pass_(1)
    rank = run.start(0, 1, name="rank-00000-2.spool", run={"run_id": "two", "attempt": 0})
    rank.end(rank.issue())
    rank.flush()
    assert of(scraped(observer.refresh()), "commtrace_calls_total") == {("all_reduce", "0"): 1}


@pytest.mark.parametrize(("axis", "label"), [("tp", "tp"), ("", "TENSOR_GROUP")])
def test_groups_of_an_axis_or_a_description_are_one(run: Run, axis: str, label: str) -> None:
    pairs = ("0,1", "2,3")
    described = "TENSOR_GROUP" if not axis else "mesh_tp"
    groups = [GroupRow(f"g{pair}", described, pair, 2, axis, "gloo") for pair in pairs]
    ranks = [run.start(each, 4, groups=[groups[each // 2]]) for each in range(4)]
    for rank in ranks:
        rank.end(rank.issue(group=f"g{pairs[rank.number // 2]}", wire_bytes=5))
    ranks[0].issue(group="g0,1")
    run.pass_(3)
    ranks[2].issue(group="g2,3")
    run.flush()
    run.pass_(1)
    samples = scraped(run.observer().refresh())
    assert of(samples, "commtrace_sent_bytes_total") == {("all_reduce", label): 20}
    assert of(samples, "commtrace_group_missing_ranks") == {label: 2}
    assert of(samples, "commtrace_group_wait_seconds") == {label: pytest.approx(4)}


def test_torchs_word_for_no_description_is_no_label(run: Run) -> None:
    rank = run.start(0, 1, groups=[GroupRow("5", "undefined", "0", 1, "", "gloo")])
    rank.end(rank.issue(group="5"))
    run.flush()
    samples = scraped(run.observer().refresh())
    assert of(samples, "commtrace_calls_total") == {("all_reduce", "5"): 1}


def test_while_an_earlier_recording_is_read_nothing_is_judged(run: Run) -> None:
    hanging(run)
    snapshot = replace(run.observer().refresh(), bytes_left=77)
    samples = scraped(snapshot)
    assert {name for name, _ in samples} == ALWAYS
    assert of(samples, "commtrace_unread_bytes") == {(): 77}


def test_a_run_that_has_ended(run: Run) -> None:
    for rank in training(run):
        rank.close()
    samples = scraped(run.observer().refresh())
    assert of(samples, "commtrace_ranks")["ended"] == 4
    assert set(of(samples, "commtrace_problem").values()) == {0}
    assert of(samples, "commtrace_step") == {(): 19}
    assert of(samples, "commtrace_rank_blocked_ratio") == {}


def test_ranks_that_died(run: Run) -> None:
    training(run)
    run.kill(2)
    run.pass_(10)
    samples = scraped(run.observer().refresh())
    assert of(samples, "commtrace_ranks")["died"] == 1
    assert of(samples, "commtrace_problem")["died"] == 1
    assert of(samples, "commtrace_problem_ranks")["died", "2"] == 1


def test_labels_are_bounded(run: Run) -> None:
    training(run)
    snapshot = run.observer().refresh()
    ranks = tuple(
        RankState(
            rank=each, host="n", pid=1, life="running", sign_age_s=0, step=each, step_s=each,
            blocked_share=(each % 4) / 10, stuck_s=each, sent_bytes=2,
        )
        for each in range(1028)
    )  # fmt: skip
    traffic = tuple(
        GroupTraffic(group=f"g{each}", kind=kind, num_calls=1, sent_bytes=each)
        for each in range(70)
        for kind in ("all_reduce", "new", "newer")
    )
    blamed = LiveProblem(problem="silent", ranks=tuple(range(2000, 2100)), text="", for_s=3)
    hidden = replace(blamed, problem="unheard of")
    problems = (blamed, blamed, hidden)
    samples = scraped(replace(snapshot, ranks=ranks, traffic=traffic))
    steps = of(samples, "commtrace_rank_step")
    assert [*steps] == [*map(str, range(1024)), "other"]
    others = {
        "commtrace_rank_step": 1024,
        "commtrace_rank_step_duration_seconds": 1027,
        "commtrace_rank_blocked_ratio": pytest.approx(0.15),
        "commtrace_rank_stuck_seconds": 1027,
        "commtrace_rank_sent_bytes_total": 8,
    }
    assert {name: of(samples, name)["other"] for name in others} == others
    sent = of(samples, "commtrace_sent_bytes_total")
    assert {group for _, group in sent} == {*(f"g{each}" for each in range(64)), "other"}
    assert {kind for kind, _ in sent} == {"all_reduce", "other"}
    assert sent["all_reduce", "other"] == sum(range(64, 70))
    assert sent["other", "g5"] == 10
    unknown = (*ranks, replace(ranks[-1], rank=2000, blocked_share=nan, sent_bytes=nan, step=-1))
    samples = scraped(replace(snapshot, ranks=unknown, traffic=traffic))
    assert "other" not in of(samples, "commtrace_rank_sent_bytes_total")
    assert of(samples, "commtrace_rank_blocked_ratio")["other"] == pytest.approx(0.15)
    assert of(samples, "commtrace_rank_step")["other"] == 1024
    found = of(scraped(replace(snapshot, problems=problems)), "commtrace_problem_ranks")
    assert [*found] == [*(("silent", str(each)) for each in range(2000, 2064)), ("silent", "other")]
    assert found["silent", "other"] == 36


@pytest.mark.parametrize("accept", [OPENMETRICS, ""])
def test_hostile_names_are_escaped(tmp_path: Path, accept: str) -> None:
    names = [
        'a"} 1\nup 0\n# EOF',
        "back\\slash\\n",
        "\x1b]0;x\x07\u202e",
        "",
        "x" * 100_000,
        "{}=,",
    ]
    folder = tmp_path / 'RUN"\n\\.comm'
    with Run(folder) as run:
        groups = [GroupRow(name, "", "0", 1, "", "gloo") for name in names]
        rank = run.start(0, 1, groups=groups)
        for name in names:
            rank.end(rank.issue(group=name, wire_bytes=3))
        run.flush()
        samples = scraped(run.observer().refresh(), accept)
    shown = {group: value for (_, group), value in of_labels(samples).items()}
    expected = [
        'a"} 1\\nup 0\\n# EOF', "back\\slash\\n", "\\x1b]0;x\\x07\\u202e", "", "x" * 100, "{}=,",
    ]  # fmt: skip
    assert shown == dict.fromkeys(expected, 3)
    assert of(samples, "commtrace_run_info") == {'RUN"\\n\\.comm': 1}
    assert {name for name, _ in samples} <= {each.sample_name for each in METRICS}


def of_labels(samples: Samples) -> dict[tuple[str, str], float]:
    """Bytes by kind and group; a group without a name has no label, or an empty label."""
    return {
        (dict(labels)["kind"], dict(labels).get("group", "")): value
        for (name, labels), value in samples.items()
        if name == "commtrace_sent_bytes_total"
    }


def test_values_that_are_no_number_are_absent(run: Run) -> None:
    training(run)
    snapshot = run.observer().refresh()
    ranks = tuple(replace(each, blocked_share=nan, step=-1) for each in snapshot.ranks)
    samples = scraped(replace(snapshot, ranks=ranks, blocked_share=nan))
    for name in ("rank_blocked_ratio", "blocked_ratio", "rank_step"):
        assert of(samples, f"commtrace_{name}") == {}
    assert all(0 <= value < inf for value in samples.values())


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], threading.Event]]:
    """Hold the first text that is made until an event is set."""
    begun, release = threading.Event(), threading.Event()
    family = METRICS[0]

    def samples(snapshot: Snapshot) -> metrics.Samples:
        if not begun.is_set():
            begun.set()
            assert release.wait(20)
        yield from family.samples(snapshot)

    monkeypatch.setattr(metrics, "METRICS", (replace(family, samples=samples), *METRICS[1:]))

    def hold() -> threading.Event:
        assert begun.wait(20)
        return release

    yield hold
    release.set()


def test_a_scrape_delays_neither_the_next_refresh_nor_scrapes_after_it(
    run: Run, held: Callable[[], threading.Event]
) -> None:
    training(run)
    observer, served = run.observer(), RunMetrics()
    served.update(observer.refresh())
    with serving_metrics(served, "127.0.0.1", 0) as url, ThreadPoolExecutor() as threads:
        slow = threads.submit(answered, url)
        release = held()
        run.pass_(5)
        served.update(observer.refresh())
        at = "commtrace_snapshot_timestamp_seconds"
        now = of(samples_of(*answered(url)[1:]), at)[()]
        assert not slow.done()
        release.set()
        assert of(samples_of(*slow.result(20)[1:]), at)[()] == pytest.approx(now - 5)


def test_scrapes_at_once_share_a_text(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    training(run)
    made: list[float] = []
    family = METRICS[1]

    def samples(snapshot: Snapshot) -> metrics.Samples:
        made.append(snapshot.at_ns)
        yield from family.samples(snapshot)

    monkeypatch.setattr(
        metrics, "METRICS", (METRICS[0], replace(family, samples=samples), *METRICS[2:])
    )
    served = RunMetrics()
    served.update(run.observer().refresh())
    with serving_metrics(served, "127.0.0.1", 0) as url, ThreadPoolExecutor(16) as threads:
        for accept in (OPENMETRICS, ""):
            answers = [*threads.map(lambda _, accept=accept: answered(url, accept), range(32))]
            assert len(set(answers)) == 1
    assert len(made) == len(PARSERS)


def test_a_scrape_during_the_end_is_whole(
    run: Run, held: Callable[[], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace_cli.serving._LAST_ANSWERS_S", 20)
    training(run)
    served = RunMetrics()
    served.update(run.observer().refresh())
    with ThreadPoolExecutor() as threads:
        with serving_metrics(served, "127.0.0.1", 0) as url:
            answer = threads.submit(answered, url)
            release = held()
            threading.Timer(1, release.set).start()
        assert release.is_set()
        assert answer.result(20)[0] == 200
        assert len(samples_of(*answer.result()[1:])) > 20
    with pytest.raises(ConnectionError):
        answered(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError) as raised:
        RunMetrics()
    assert str(raised.value).splitlines() == [
        "cannot serve metrics",
        "  found: no prometheus_client",
        "  why: it is not among the packages that commtrace installs by itself",
        "  try: pip install 'commtrace[metrics]'",
    ]


def test_names_follow_the_conventions_of_prometheus() -> None:
    names = [each.name for each in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"commtrace(_[a-z]+)+", metric.name)
        assert not metric.name.endswith(("_total", "_info", "_ms", "_ns", "_share", "_percent"))
        assert metric.meaning.endswith(".")
        assert (metric.type == "counter") == metric.sample_name.endswith("_total")


def test_the_document_lists_every_metric() -> None:
    rows = re.findall(r"^\| `(commtrace_\w+)` \| (.*?) \| (.*) \|$", DOCUMENT, re.M)
    assert rows == [
        (each.sample_name, ", ".join(f"`{label}`" for label in each.labels), each.meaning)
        for each in METRICS
    ]
    assert f"{metrics.MOST_RANKS - 1:,}" in DOCUMENT
    assert f"first {metrics.MOST_GROUPS} groups" in DOCUMENT
    assert f"first {metrics.MOST_BLAMED} ranks" in DOCUMENT
    assert set(re.findall(r"\bcommtrace_\w+", DOCUMENT)) == {each.sample_name for each in METRICS}


def queries(node: Any) -> Iterator[tuple[str, str]]:
    """Yield the queries of a dashboard for metrics, each with its legend."""
    if isinstance(node, dict):
        for name in ("expr", "query", "definition"):
            if isinstance(query := node.get(name), str) and "commtrace_" in query:
                yield query, node.get("legendFormat", "")
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for child in children:
        yield from queries(child)


def unserved(dashboard: Any) -> list[str]:
    """Queries of a dashboard for metrics, or by labels, that are not served."""
    labels = {each.sample_name: {*each.labels, "instance"} for each in METRICS}
    found = []
    for query, legend in queries(dashboard):
        used = {
            *re.findall(r"{{(\w+)}}", legend),
            *re.findall(r"by \((\w+)\)", query),
            *re.findall(r"[{,](\w+)=", query),
            *re.findall(r"label_values\(.*, (\w+)\)", query),
        }
        for name in set(re.findall(r"commtrace_\w+", query)):
            found += [query] if name not in labels or not used <= labels[name] else []
    return found


def test_the_dashboard_asks_for_metrics_that_are_served() -> None:
    assert unserved(DASHBOARD) == []
    text = json.dumps(DASHBOARD)
    assert [each.sample_name for each in METRICS if each.sample_name not in text] == [
        "commtrace_world_size"
    ]


@pytest.mark.parametrize(
    "target",
    [
        {"expr": "commtrace_steps"},
        {"expr": "commtrace_step", "legendFormat": "{{rank}}"},
        {"expr": "sum by (kind) (rate(commtrace_rank_sent_bytes_total[1m]))"},
        {"expr": 'commtrace_rank_step{kind="send"}'},
        {"query": {"query": "label_values(commtrace_run_info, version)"}},
    ],
)
def test_a_query_for_something_that_is_not_served_is_noticed(target: dict[str, Any]) -> None:
    assert len(unserved({"panels": [{"targets": [target]}]})) == 1


def test_panels_of_the_dashboard_have_their_places() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [(x, y) for panel in panels for at in [panel["gridPos"]]
              for x in range(at["x"], at["x"] + at["w"])
              for y in range(at["y"], at["y"] + at["h"])]  # fmt: skip
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) == 23
