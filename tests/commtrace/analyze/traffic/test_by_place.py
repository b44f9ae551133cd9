from __future__ import annotations

from commtrace.analyze import CATALOG
from tests.commtrace.analyze.rows import call, group, run_of


def test_groups_have_their_axis_and_size() -> None:
    groups = [group("g", (0, 1)), group("h", (1,), mesh_axis="dp")]
    calls = [call(payload_bytes=6), call(group="h", payload_bytes=2), call(group="lost")]
    table = CATALOG["by_group"].function(run_of(calls, groups=groups)).set_index("group")
    assert table["mesh_axis"].to_dict() == {"g": "tp", "h": "dp", "lost": ""}
    assert table["group_size"].to_dict() == {"g": 2, "h": 1, "lost": -1}
    assert table["payload_bytes"]["g"] == 3.0


def test_groups_of_one_axis_are_added_up() -> None:
    groups = [group("g", (0,)), group("h", (1,))]
    frames = run_of([call(), call(rank=1, group="h")], groups=groups)
    assert CATALOG["by_axis"].function(frames)["num_calls"].tolist() == [1.0]


def test_lines_and_regions_are_distinguished() -> None:
    calls = [
        call(source_file="a.py", source_line=3, region="loss", blocked_ns=1),
        call(source_file="a.py", source_line=5, blocked_ns=9),
    ]
    lines = CATALOG["by_source"].function(run_of(calls))
    assert lines["source_line"].tolist() == [5, 3]
    assert CATALOG["by_region"].function(run_of(calls))["region"].tolist() == ["", "loss"]
