"""Speedscope export: it obeys the schema, and its sums agree with the analyses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import Frames, load
from commtrace.exporters.speedscope import speedscope_document, write_speedscope
from tests.commtrace.analyze.rows import call, run_of
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.synthetic import write_synthetic_run

UNITS = {"none", "nanoseconds", "microseconds", "milliseconds", "seconds", "bytes"}


def check(document: dict[str, Any]) -> None:
    """Check the parts of speedscope's file-format-schema.json that apply to a sampled profile."""
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert isinstance(document["exporter"], str)
    assert isinstance(document["name"], str)
    assert 0 <= document["activeProfileIndex"] < len(document["profiles"])
    frames = document["shared"]["frames"]
    for frame in frames:
        assert isinstance(frame["name"], str)
        assert set(frame) <= {"name", "file", "line", "col"}
        assert isinstance(frame.get("file", ""), str)
        assert isinstance(frame.get("line", 0), int)
    for profile in document["profiles"]:
        assert (profile["type"], profile["unit"] in UNITS) == ("sampled", True)
        assert set(profile) == {
            *("type", "name", "unit", "startValue", "endValue", "samples", "weights"),
        }
        assert len(profile["samples"]) == len(profile["weights"])
        assert sum(profile["weights"]) == profile["endValue"] - profile["startValue"]
        assert all(0 <= number < len(frames) for stack in profile["samples"] for number in stack)
        assert all(weight > 0 for weight in profile["weights"]) or profile["unit"] == "bytes"


def by_stack(document: dict[str, Any], place: int) -> dict[str, int]:
    names = [frame["name"] for frame in document["shared"]["frames"]]
    profile = document["profiles"][place]
    found: dict[str, int] = {}
    for stack, weight in zip(profile["samples"], profile["weights"], strict=True):
        key = " > ".join(names[number] for number in stack)
        found[key] = found.get(key, 0) + weight
    return found


def test_a_stack_is_phase_modules_operator_and_call() -> None:
    rows = [
        call(at=0, module="layers.0.wq", op="aten.mm.default", blocked_ns=30, wire_bytes=7,
             source_file="train.py", source_line=4),
        call(id=1, at=50, module="layers.0.wq", op="aten.mm.default", blocked_ns=20, wire_bytes=3,
             source_file="train.py", source_line=4),
        call(id=2, at=90, phase="", kind="barrier", blocked_ns=5, wire_bytes=0),
        call(rank=1, at=0, phase="", kind="barrier", blocked_ns=-1, wire_bytes=-1),
    ]  # fmt: skip
    document = speedscope_document(run_of(rows))
    check(document)
    assert [profile["name"] for profile in document["profiles"]] == [
        "rank 0: time blocked",
        "rank 1: time blocked, not known for 1 of 1 call",
        "all ranks: bytes sent, known for 3 of 4 calls",
    ]
    path = "forward > layers > 0 > wq > aten.mm.default > all_reduce tp"
    assert by_stack(document, 0) == {path: 50, "no phase > barrier tp": 5}
    assert document["profiles"][0]["weights"] == [50, 5]  # equal consecutive samples are merged
    assert by_stack(document, 1) == {}
    assert by_stack(document, 2) == {path: 10, "no phase > barrier tp": 0}
    assert {"name": "all_reduce tp", "file": "train.py", "line": 4} in document["shared"]["frames"]


@pytest.mark.parametrize("source", ["training", "synthetic", "empty"])
def test_weights_are_the_times_and_bytes_of_the_trace(source: str, tmp_path: Path) -> None:
    frames: Frames = (
        load(training_trace())
        if source == "training"
        else load(write_synthetic_run(tmp_path / "run.json"))
        if source == "synthetic"
        else run_of()
    )
    write_speedscope(frames, tmp_path / "out.json")
    document = json.loads((tmp_path / "out.json").read_text())
    check(document)
    blocked = frames.comm["blocked_ns"].clip(lower=0)
    *of_ranks, of_all = document["profiles"]
    assert [profile["endValue"] for profile in of_ranks] == (
        blocked.groupby(frames.comm["rank"]).sum().tolist()
    )
    assert of_all["endValue"] == frames.comm["wire_bytes"].clip(lower=0).sum()
