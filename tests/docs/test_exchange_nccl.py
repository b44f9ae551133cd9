"""docs/exchange.md says of each field of NCCL Inspector and NCCL RAS what becomes of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import load
from commtrace.importers import import_trace
from commtrace.importers.input_files import documents_of
from commtrace.importers.inspector import lines as inspector_lines
from commtrace.importers.ras.snapshots import snapshot_of
from commtrace.schema import DEAD, FINALIZING, INITIALIZING, TABLES, UNRESPONSIVE
from tests.commtrace.importers.inspector.layouts import (
    DUMPED_US,
    LAYOUTS,
    Communicator,
    InspectorLayout,
    Operation,
    log_of,
)
from tests.commtrace.importers.ras.layouts import communicator, missing, rank, snapshot
from tests.commtrace.importers.tracked import fields_of, tracked
from tests.docs.exchange import LOGS, SNAPSHOTS, documented

Line = dict[str, Any]
Change = Callable[[Any], object]
PAGES = {"logs": documented(LOGS), "snapshots": documented(SNAPSHOTS)}
OWN = {layout.name: layout for layout in LAYOUTS}["4.2 verbose"]
SHARED = {layout.name: layout for layout in LAYOUTS}["4.3"]
PLAIN = {layout.name: layout for layout in LAYOUTS}["4.2"]


@dataclass(frozen=True, slots=True)
class Case:
    """A field that is set to a distinctive value, and the columns that follow it.

    `change` gets the lines of rank 1's log: statistics, an all-reduce, a send; or a snapshot.
    """

    field: str
    change: Change
    expected: dict[str, Any]
    layout: InspectorLayout = OWN
    size: int = 2


def performance(**fields: Any) -> Change:
    return lambda lines: lines[1]["coll_perf"].update(fields)


def transfer(**fields: Any) -> Change:
    return lambda lines: lines[2]["p2p_perf"].update(fields)


def header(**fields: Any) -> Change:
    return lambda lines: [line["header"].update(fields) for line in lines]


def metadata(**fields: Any) -> Change:
    return lambda lines: [line["metadata"].update(fields) for line in lines]


def stats(**fields: Any) -> Change:
    return lambda lines: lines[0]["dump_stats"].update(fields)


def renamed(place: int, field: str) -> Change:
    """Give a field a name that is not read."""
    return lambda lines: lines[place].update(other=lines[place].pop(field))


def trace(**fields: Any) -> Change:
    return lambda lines: lines[1]["coll_perf"]["event_trace_ts"].update(fields)


def channel(**fields: Any) -> Change:
    return lambda lines: [
        each.update(fields) for each in lines[1]["coll_perf"]["event_trace_ts"]["kernel_events"]
    ]


def with_proxies(lines: list[Line]) -> None:
    lines[0]["dump_stats"]["proxy_records"] = 1
    lines.append({"proxy_trace": {"record_type": "proxy_op"}})


def without_proxy_records(lines: list[Line]) -> None:
    with_proxies(lines)
    del lines[0]["dump_stats"]["proxy_records"]


def once_more(lines: list[Line]) -> None:
    """Write the transfer twice, with the same number."""
    lines.append(lines[2])


AT_NS = DUMPED_US * 1000
LATE_US = DUMPED_US + 77
SIZE = 16384

LOG_CASES = [
    Case("coll", performance(coll="Reduce"), {"kind": "reduce", "native_op": "nccl:Reduce"}),
    Case("p2p", transfer(p2p="Recv"), {"last.kind": "recv", "last.native_op": "nccl:Recv"}),
    Case("id", header(id="0x77"), {"group": "0x77"}),
    Case("coll_sn", performance(coll_sn=77), {"seq": 77}),
    Case("p2p_sn", once_more,
         {"lacks": "the number of an earlier operation, which are left out: 1"}),
    Case("p2p_peer", transfer(p2p_peer=1), {"last.peer": 1}),
    Case("coll_msg_size_bytes", performance(coll_msg_size_bytes=77),
         {"payload_bytes": 77, "wire_bytes": 77}),
    Case("p2p_msg_size_bytes", transfer(p2p_msg_size_bytes=77), {"last.payload_bytes": 77}),
    Case("coll_exec_time_us", performance(coll_exec_time_us=77),
         {"device_ns": 77_000, "kernels.duration_ns": 77_000}),
    Case("p2p_exec_time_us", transfer(p2p_exec_time_us=77), {"last.device_ns": 77_000}),
    Case("coll_timing_source", performance(coll_timing_source="collective_cpu"), {"device_ns": -1}),
    Case("p2p_timing_source", transfer(p2p_timing_source="unknown"), {"last.device_ns": -1}),
    Case("coll_algo", performance(coll_algo="TREE"), {"algorithm": "TREE"}),
    Case("coll_proto", performance(coll_proto="LL128"), {"protocol": "LL128"}),
    Case("p2p_algo", transfer(p2p_algo="P"), {"last.algorithm": "P"}),
    Case("p2p_proto", transfer(p2p_proto="Q"), {"last.protocol": "Q"}),
    Case("coll_busbw_gbs", performance(coll_busbw_gbs=77.0), {"lacks": "size and time in 1 lines"}),
    Case("p2p_busbw_gbs", transfer(p2p_busbw_gbs=77.0), {"lacks": "size and time in 1 lines"}),
    Case("event_trace_ts", performance(event_trace_ts=None), {"issue_ns": -1}),
    Case("kernel_events", trace(kernel_events=[]), {"issue_ns": -1, "channels": -1}),
    Case("kernel_events",
         lambda lines: lines[1]["coll_perf"]["event_trace_ts"]["kernel_events"].pop(),
         {"channels": 1}),
    Case("kernel_start_ts", channel(kernel_start_ts=DUMPED_US + 9),
         {"issue_ns": AT_NS + 9_000, "kernels.start_ns": AT_NS + 9_000}),
    Case("kernel_stop_ts", channel(kernel_stop_ts=LATE_US), {"complete_ns": LATE_US * 1000}),
    Case("coll_start_ts", trace(coll_start_ts=DUMPED_US + 2), {"kernels.launch_ns": AT_NS + 2000}),
    Case("p2p_start_ts",
         lambda lines: lines[2]["p2p_perf"]["event_trace_ts"].update(p2p_start_ts=DUMPED_US + 903),
         {"last_kernel.launch_ns": AT_NS + 903_000}),
    Case("dump_timestamp_us", metadata(dump_timestamp_us=LATE_US),
         {"complete_ns": LATE_US * 1000}, PLAIN),
    Case("comm_name", header(comm_name="dp"), {"groups.description": "dp"}),
    Case("n_ranks", header(n_ranks=3), {"groups.size": 3, "groups.ranks": ""}),
    Case("rank", header(rank=2), {"ranks.rank": 2}, size=3),
    Case("hostname", metadata(hostname="other"), {"ranks.host": "other"}),
    Case("pid", metadata(pid=77), {"ranks.pid": 77}),
    Case("header", lambda lines: [line.update(header=7) for line in lines[1:]], {"comm.rows": 2}),
    Case("metadata", lambda lines: [line.pop("metadata") for line in lines[1:]], {"comm.rows": 2}),
    Case("coll_perf", renamed(1, "coll_perf"), {"comm.rows": 3}),
    Case("p2p_perf", renamed(2, "p2p_perf"), {"comm.rows": 3}),
    Case("dump_stats", lambda lines: lines.insert(2, lines[0] | {"dump_stats": {}}),
         {"comm.rows": 3}, SHARED),
    Case("coll_records", stats(coll_records=0), {"comm.rows": 3}, SHARED),
    Case("p2p_records", stats(p2p_records=0), {"comm.rows": 3}, SHARED),
    Case("proxy_trace", with_proxies, {"lacks": "proxies (proxy_trace), which are left out: 1"},
         SHARED),
    Case("proxy_records", without_proxy_records, {"lacks": "without the header of their dump"},
         SHARED),
    Case("coll_dropped_total", stats(coll_dropped_total=77), {"lacks": "77 operations that"}),
    Case("p2p_dropped_total", stats(p2p_dropped_total=78), {"lacks": "78 operations that"}),
]  # fmt: skip


def lines_of(layout: InspectorLayout, place: int, size: int = 2) -> list[Line]:
    own = [
        Operation("AllReduce", 3, SIZE, 50),
        Operation("Send", 1, SIZE, 60, peer=1 - place, at_us=900),
    ]
    text = log_of(layout, [Communicator("0x5", place, size, own)], pid=100 + place)
    return [json.loads(line) for line in text.splitlines()]


def values_of_logs(folder: Path, case: Case, change: Change) -> dict[str, Any]:
    """Columns of the first and the last call of the second process, and columns of its group."""
    folder.mkdir()
    for place in range(2):
        lines = lines_of(case.layout, place, case.size)
        if place:
            change(lines)
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"{place}.log").write_text(text)
    frames = load(import_trace([folder]))
    ranks = frames.ranks.to_dict("records")
    found = {f"ranks.{name}": value for name, value in ranks[-1].items()}
    found |= {"comm.rows": len(frames.comm), "lacks": str(frames.run["lacks"])}
    comm = frames.comm[frames.comm["rank"] == ranks[-1]["rank"]]
    if len(comm):
        found |= {f"last.{name}": value for name, value in comm.iloc[-1].items()}
        found |= comm.iloc[0].to_dict()
        group = frames.groups[frames.groups["name"] == comm.iloc[0]["group"]]
        found |= {f"groups.{name}": value for name, value in group.iloc[0].items()}
    kernels = frames.kernels[frames.kernels["rank"] == ranks[-1]["rank"]]
    if len(kernels):
        found |= {f"kernels.{name}": value for name, value in kernels.iloc[0].items()}
        found |= {f"last_kernel.{name}": value for name, value in kernels.iloc[-1].items()}
    return found


def member(**fields: Any) -> Change:
    """Set fields of rank 1 of the first communicator."""
    return lambda document: document["communicators"][0]["ranks"][1].update(fields)


def status(which: str = "ranks", /, **fields: Any) -> Change:
    return lambda document: document["communicators"][0][which][-1]["status"].update(fields)


def seen(**fields: Any) -> Change:
    return lambda document: document["communicators"][0].update(fields)


def half(**fields: Any) -> Change:
    """Set fields of rank 1 in a second communicator, of ranks 1 and 2, and add it."""

    def change(document: Any) -> None:
        ranks = [rank(1) | {"rank": 0}, missing(2) | {"rank": 1}]
        ranks[0].update(fields)
        own = communicator(ranks[:1], ranks[1:], hash="0x9", secondary_hash="0x9:0x9")
        document["communicators"].append(own)

    return change


def twin(second: str) -> Change:
    """Add a communicator with the hash of the first."""

    def change(document: Any) -> None:
        first = document["communicators"][0]
        document["communicators"].append(first | {"secondary_hash": second})

    return change


STATE = "communicators.state"
SNAPSHOT_CASES = [
    Case("rank", seen(ranks=[rank(0), rank(1) | {"rank": 3}], size=4),
         {"communicators.rank": 3, "groups.ranks": ""}),
    Case("host", member(host="other"), {"ranks.host": "other"}),
    Case("pid", member(pid=77), {"ranks.pid": 77}),
    Case("nvml_dev", half(nvml_dev=77), {"lacks": "devices are numbered"}),
    Case("cuda_dev", half(nvml_dev=None, cuda_dev=77), {"lacks": "devices are numbered"}),
    Case("hash", seen(hash="0x77"), {"communicators.group": "0x77", "groups.name": "0x77"}),
    Case("secondary_hash", twin("0x7:0x8"), {"groups.name": "0xae94423cfbb2ef4a:0x7:0x8"}),
    Case("timestamp", lambda document: document.update(timestamp="2027-01-01 00:00:00"),
         {"communicators.at_ns": 1_798_761_600 * 10**9}),
    Case("init_state", status(init_state=7), {STATE: INITIALIZING}),
    Case("init_state", status(init_state=3), {"communicators.error": 3}),
    Case("async_error", status(async_error=5), {"communicators.error": 5}),
    Case("finalize_called", status(finalize_called=True), {STATE: FINALIZING}),
    Case("destroy_flag", status(destroy_flag=True), {STATE: FINALIZING}),
    Case("abort_flag", status(abort_flag=True), {STATE: "aborted"}),
    Case("unresponsive", status("missing_ranks", unresponsive=True),
         {f"last.{STATE}": UNRESPONSIVE}),
    Case("considered_dead", status("missing_ranks", considered_dead=True), {f"last.{STATE}": DEAD}),
    Case("collective_counts", member(collective_counts={"Reduce": 77}),
         {"communicators.kind": "reduce", "communicators.num_calls": 77}),
    Case("size", seen(size=9), {"groups.size": 9}),
    Case("communicators", half(), {"rows": 17}),
    Case("ranks", seen(ranks=[]), {"rows": 1}),
    Case("missing_ranks", seen(missing_ranks=[]), {"rows": 10}),
    Case("status", status(abort_flag=True), {STATE: "aborted"}),
    Case("nccl_version", lambda document: document.update(nccl_version="9"), {"version": "9"}),
    Case("ras", lambda document: document.update(ras={"timeouts_count": 3}),
         {"lacks": "timed out 3 times"}),
    Case("timeouts_count", lambda document: document["ras"].update(timeouts_count=4),
         {"lacks": "timed out 4 times"}),
]  # fmt: skip


def values_of_snapshot(folder: Path, _: Case, change: Change) -> dict[str, Any]:
    """Columns of rank 1, of the last member, and of the last group."""
    folder.mkdir()
    document = json.loads(snapshot(communicator([rank(0), rank(1)], [missing(2)])))
    change(document)
    (folder / "ras.json").write_text(json.dumps(document))
    frames = load(import_trace([folder]))
    table = frames.communicators
    facts = [*frames.run["lacks"], frames.run["ranks_from"]]
    found = {"rows": len(table), "lacks": str(facts), "version": frames.run["nccl_version"]}
    ranks = sorted({*table["rank"]} - {0, 2})
    if ranks:
        own = table[table["rank"] == ranks[-1]].iloc[0]
        found |= {f"communicators.{name}": value for name, value in own.items()}
        of_rank = frames.ranks[frames.ranks["rank"] == ranks[-1]].iloc[0]
        found |= {f"ranks.{name}": value for name, value in of_rank.items()}
    if len(table):
        last = table.iloc[-1]
        found |= {f"last.communicators.{name}": value for name, value in last.items()}
        found |= {f"groups.{name}": value for name, value in frames.groups.iloc[-1].items()}
    return found


CASES = [("logs", case) for case in LOG_CASES] + [("snapshots", case) for case in SNAPSHOT_CASES]
VALUES = {"logs": values_of_logs, "snapshots": values_of_snapshot}


@pytest.mark.parametrize(
    ("page", "case"), CASES, ids=[f"{case.field}-{','.join(case.expected)}" for _, case in CASES]
)
def test_a_column_follows_its_field(page: str, case: Case, tmp_path: Path) -> None:
    before = VALUES[page](tmp_path / "before", case, lambda _: None)
    found = VALUES[page](tmp_path / "after", case, case.change)
    for name, expected in case.expected.items():
        is_part = name == "lacks"
        assert expected in found[name] if is_part else found[name] == expected, name
        assert expected not in before[name] if is_part else before.get(name) != expected, name


@pytest.mark.parametrize("page", PAGES)
def test_every_documented_column_is_tested_by_a_field_that_the_page_names(page: str) -> None:
    tested = {
        (name.removeprefix("last."), case.field)
        for of_page, case in CASES
        if of_page == page
        for name in case.expected
    }
    for column, code in PAGES[page].columns.items():
        assert any((column, field) in tested for field in code), column
        table, _, name = column.rpartition(".")
        assert name in [each.name for each in TABLES[table or "comm"]], column


@pytest.mark.parametrize("page", PAGES)
def test_every_documented_field_is_tested_and_every_tested_one_documented(page: str) -> None:
    tested = {case.field for of_page, case in CASES if of_page == page}
    assert tested == {name for name, used in PAGES[page].fields.items() if used}


def test_exactly_the_fields_are_read_that_the_page_does_not_call_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[str, set[str]] = {"logs": set(), "snapshots": set()}
    scan = inspector_lines._scan

    def tracking(text: str, start: int) -> tuple[Any, int]:
        value, end = scan(text, start)
        return tracked(value, read["logs"]), end

    monkeypatch.setattr(inspector_lines, "_scan", tracking)
    for number, (page, case) in enumerate(CASES):
        VALUES[page](tmp_path / str(number), case, case.change)
    path = tmp_path / "ras.json"
    path.write_text(snapshot(communicator([rank(0)], [missing(1)])))
    (document,), _ = documents_of([path])
    object.__setattr__(document, "content", tracked(document.content, read["snapshots"]))
    snapshot_of(document)
    for page, of_page in read.items():
        names = {name for name, used in PAGES[page].fields.items() if used}
        assert of_page - {""} - set(PAGES[page].fields) == set(), page
        assert of_page & set(PAGES[page].fields) == names, page


def test_the_page_names_every_field() -> None:
    for layout in LAYOUTS:
        assert fields_of(lines_of(layout, 0)) <= set(PAGES["logs"].fields)
    counts = json.loads(snapshot(communicator([rank(0)], [missing(1)])))
    counts["communicators"][0]["ranks"][0]["collective_counts"] = {}  # functions for names
    assert fields_of(counts) <= set(PAGES["snapshots"].fields)
