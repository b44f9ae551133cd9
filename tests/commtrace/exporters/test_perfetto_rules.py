"""Every export follows the rules by which Perfetto imports a trace (`perfetto_rules`)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.large_run import Plan, large_trace
from commtrace.analyze import Frames, load
from commtrace.event import OpEvent
from commtrace.exporters.nesting import MOST_DEPTH
from commtrace.exporters.perfetto import COMMUNICATION, write_perfetto
from commtrace.exporters.perfetto_kernels import KERNELS
from commtrace.importers import import_trace
from commtrace.schema import COMMUNICATION as SENT
from tests.commtrace.analyze.devices.devices import NCCL, device_trace
from tests.commtrace.analyze.rows import START_NS, call, kernel, layouts_trace, random_trace, run_of
from tests.commtrace.analyze.test_long_runs import lasting_a_week
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.exporters.perfetto_rules import Imported, imported
from tests.commtrace.exporters.test_perfetto import made_up
from tests.commtrace.importers.kineto.profiles import Profile, training, write_profiles
from tests.commtrace.synthetic import write_synthetic_run

NAMES = ["🚀 launch", "a\x7fb\x00\x1b", "\ud800", "größe", '"\\u0041\\', "</script>\u2028", ""]


def exported(frames: Frames, folder: Path, name: str = "run.json") -> str:
    path = folder / name
    write_perfetto(frames, path)
    content = path.read_bytes()
    return (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8")


def check(frames: Frames, folder: Path) -> Imported:
    """Export a run, and check that nothing of it is rejected."""
    found = imported(exported(frames, folder))
    assert found.problems == {}
    calls = [each for each in slices(found, COMMUNICATION, KERNELS) if each["cat"] != "wait"]
    assert len(calls) == (frames.comm["issue_ns"] >= 0).sum()
    kernels = frames.kernels[(frames.kernels[["start_ns", "duration_ns"]] >= 0).all(axis=1)]
    assert len(slices(found, KERNELS, 2**32)) == len(kernels)
    return found


def slices(found: Imported, first: int, last: int) -> list[dict[str, Any]]:
    """The slices on tracks of a sort."""
    return [
        each["event"]
        for (_, tid), of_track in found.slices.items()
        for each in of_track
        if first <= tid < last
    ]


def imported_run(folder: Path) -> Frames:
    """Profiles of two GPUs: a training, and kernels that overlap on a stream."""
    profiles = training(late_us=30.25)
    for profile in profiles:
        profile.launched("ampere_gemm", 50.001, (60.003, 10.004), (64.5, 30.0625), stream=7)
        profile.launched("ncclDevKernel_AllGather_RING_LL", 70, (80.125, 5.5), stream=20)
    return load(import_trace([write_profiles(folder / "profiles", profiles)]))


RUNS: dict[str, Callable[[Path], Frames]] = {
    "recording": lambda folder: load(write_synthetic_run(folder / "run.json")),
    "training": lambda _: load(training_trace()),
    "large": lambda _: load(large_trace(Plan(num_ranks=8, num_calls=400, num_layers=2))),
    "imported": imported_run,
    "devices": lambda _: load(device_trace()),
    "a week": lambda _: load(lasting_a_week(random_trace(0))),
    "nothing": lambda _: run_of(),
    **{f"random{seed}": lambda _, seed=seed: load(random_trace(seed)) for seed in range(6)},
    **{f"layouts{seed}": lambda _, seed=seed: load(layouts_trace(seed)) for seed in range(2)},
    **{f"overlapping{seed}": lambda _, seed=seed: made_up(seed) for seed in range(6)},
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_perfetto_imports_every_slice_and_every_arrow(
    run: Callable[[Path], Frames], tmp_path: Path
) -> None:
    check(run(tmp_path), tmp_path)


def test_a_compressed_export_is_the_same(tmp_path: Path) -> None:
    frames = load(device_trace())
    assert exported(frames, tmp_path, "a.json.gz") == exported(frames, tmp_path, "a.json")


def test_kernels_are_on_the_tracks_of_their_streams(tmp_path: Path) -> None:
    frames = load(device_trace())
    found = check(frames, tmp_path)
    titles = {name for (_, tid), name in found.names.items() if tid >= KERNELS}
    assert titles == {"stream 7", "stream 20", "stream 22"}
    events = [each for each in slices(found, KERNELS, 2**32) if each["pid"] == 0]
    rows = frames.kernels[frames.kernels["rank"] == 0].set_index("id")
    for event in events:
        row = rows.loc[event["args"]["id"]]
        assert (event["name"], event["cat"]) == (row["name"], row["category"])
        assert event["args"]["stream"] == row["stream"]
        assert int(event["ts"] * 1000) == row["start_ns"] - frames.start_ns
        assert int(event["dur"] * 1000) == row["duration_ns"]
        assert event["args"]["launch_delay_ns"] == row["start_ns"] - row["launch_ns"]
        assert event["args"].get("call", -1) == row["call_id"]


def test_an_arrow_leads_from_a_call_to_its_kernel(tmp_path: Path) -> None:
    found = check(load(device_trace()), tmp_path)
    arrows = [(a["event"], b["event"]) for a, b in found.arrows if b["event"]["name"] == NCCL]
    assert len(arrows) == 8
    for start, end in arrows:
        assert start["pid"] == end["pid"]
        assert start["cat"] in ("all_reduce", "wait")
        assert start["ts"] == end["ts"]


def test_kernels_that_overlap_on_a_stream_are_on_tracks_of_their_own(tmp_path: Path) -> None:
    kernels = [
        kernel(id=0, at=0, until=100),
        kernel(id=1, at=50, until=150),
        kernel(id=2, at=60, until=70),  # would nest, but does not run inside of another kernel
        kernel(id=3, at=100, until=120, device="cuda:1", stream=-1),
        kernel(id=4, at=100, until=100),
        kernel(id=5, at=100, until=160),
    ]
    found = check(run_of(kernels=kernels, num_ranks=1), tmp_path)
    by_track = {
        found.names[track]: [each["event"]["args"]["id"] for each in of_track]
        for track, of_track in found.slices.items()
    }
    assert by_track == {
        "cuda:0 stream 7": [0, 4],
        "cuda:0 stream 7 (2)": [1],
        "cuda:0 stream 7 (3)": [2, 5],
        "cuda:1 stream ?": [3],
    }


@pytest.mark.parametrize("name", NAMES)
def test_any_name_arrives(name: str, tmp_path: Path) -> None:
    rows = [call(id=0, at=0, until=9, module=name, region=name, op=name, source_file=name)]
    kernels = [kernel(at=0, until=9, name=name, call_id=0, category=SENT)]
    frames = run_of(rows, kernels=kernels, num_ranks=1, run={"command": name, name: [name, 0.5]})
    found = check(frames, tmp_path)
    (event,) = slices(found, KERNELS, 2**32)
    shown = name.replace("\ud800", "\\ud800")
    assert event["name"] == (shown or "kernel")
    (of_call,) = slices(found, COMMUNICATION, KERNELS)
    assert of_call["args"].get("module", "") == shown


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    frames = run_of(run={"share": float("nan"), "list": [float("inf"), {"x": -float("inf")}]})
    text = exported(frames, tmp_path)
    assert imported(text).problems == {}
    facts = json.loads(text)["otherData"]["run"]
    assert (facts["share"], facts["list"]) == (None, [None, {"x": None}])


def test_slices_are_not_deeper_than_perfetto_shows(tmp_path: Path) -> None:
    known = {"rank": 0, "thread": 1, "module": ".".join(["m"] * 900)}
    ops = [
        OpEvent(id=n, op=f"op{n}", start_ns=START_NS + n, duration_ns=2000 - 2 * n, **known)
        for n in range(700)
    ]
    found = imported(exported(run_of(ops=ops, num_ranks=1), tmp_path))
    assert found.problems == {}
    deepest = max(each["depth"] for of_track in found.slices.values() for each in of_track)
    assert MOST_DEPTH - 5 < deepest < MOST_DEPTH


def test_operators_and_kernels_of_unknown_time_are_left_out(tmp_path: Path) -> None:
    ops = [OpEvent(rank=0, id=0, op="a", start_ns=-1, duration_ns=5, thread=1)]
    kernels = [kernel(at=0, until=5)._replace(start_ns=-1)]
    found = imported(exported(run_of(ops=ops, kernels=kernels, num_ranks=1), tmp_path))
    assert found.problems == {}
    assert not found.slices


def test_a_payload_beyond_64_bits_is_counted_as_a_number(tmp_path: Path) -> None:
    size = (1 << 58) - 1
    rows = [call(id=n, seq=n, at=n, until=999, payload_bytes=size) for n in range(80)]
    text = exported(run_of(rows, num_ranks=1), tmp_path)
    assert imported(text).problems == {}
    counts = [e["args"]["bytes"] for e in json.loads(text)["traceEvents"] if e["ph"] == "C"]
    assert max(counts) == pytest.approx(80 * size)
    assert min(counts) >= 0


TRACK = {"pid": 0, "tid": 5}
NAMED = {"ph": "M", "name": "thread_name", **TRACK, "args": {"name": "a track"}}


def slice_of(ts: Any, dur: Any, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "a", "cat": "c", **TRACK, "ts": ts, "dur": dur, **more}


def flow(phase: str, ts: float, **more: Any) -> dict[str, Any]:
    end = {"bp": "e"} if phase == "f" else {}
    known = {"ph": phase, "name": "n", "cat": "c", "id": 1, **TRACK, "ts": ts}
    return known | end | more


@pytest.mark.parametrize(
    ("rule", "events"),
    [
        ("nesting", [slice_of(0, 10), slice_of(5, 10)]),
        ("time", [slice_of(-1, 10)]),
        ("time", [slice_of(1, -1)]),
        ("time", [slice_of(0.0005, 1)]),
        ("event", [slice_of(0, 10, pid=-1)]),
        ("event", [slice_of(0, 10, tid=2**32)]),
        ("event", [slice_of(0, 10, args=[1])]),
        ("event", [{"ph": "X", "name": "a", **TRACK, "dur": 3}]),
        ("event", [slice_of(0, None)]),
        ("depth", [slice_of(n, 2000 - 2 * n) for n in range(513)]),
        ("flow", [flow("s", 5)]),
        ("flow", [slice_of(0, 10), flow("f", 5)]),
        ("flow", [slice_of(0, 10), flow("s", 5), flow("s", 6)]),
        ("flow", [slice_of(0, 10), flow("s", 5), flow("f", 6, bp="x")]),
        ("flow", [slice_of(0, 10), flow("f", 3), flow("s", 5)]),
        ("counter", [{"ph": "C", "name": "n", "pid": 0, "ts": 1, "args": {"x": "many"}}]),
        ("name", [slice_of(0, 10, tid=6)]),
    ],
)
def test_each_rule_can_fail(rule: str, events: list[Any]) -> None:
    text = json.dumps({"traceEvents": [NAMED, *events]})
    assert set(imported(text).problems) == {rule}
    assert imported(json.dumps({"traceEvents": [NAMED, slice_of(0, 10)]})).problems == {}


@pytest.mark.parametrize("text", ['"\\ud83d\\ude80"', '"\x7f"', "NaN", '"\\\\\\ud83d"'])
def test_each_rule_of_texts_can_fail(text: str) -> None:
    document = json.dumps({"traceEvents": [NAMED]})[:-1] + f', "otherData": {text}}}'
    assert set(imported(document).problems) == {"json"}
    fine = json.dumps({"traceEvents": [NAMED]})[:-1] + ', "otherData": "\\\\ud83d 🚀"}'
    assert imported(fine).problems == {}


def test_profiles_with_one_rank_are_exported_too(tmp_path: Path) -> None:
    profile = Profile(0, groups={"0": [0, 1]})
    profile.call("allreduce", "c10d::allreduce_", 5, seq=1, kernel=(20.5, 10.25))
    frames = load(import_trace([write_profiles(tmp_path / "one", [profile])]))
    check(frames, tmp_path)
    assert frames.kernels["call_id"].tolist() == [0]
