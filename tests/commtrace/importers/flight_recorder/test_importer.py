"""Calls and groups of imported flight-recorder dumps, and what these lack."""

from __future__ import annotations

import contextlib
import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

import commtrace
import dtensor_core
from commtrace.analyze import CATALOG, load, notices_of
from commtrace.errors import EmptyTraceError
from commtrace.importers import import_trace
from tests.commtrace.importers.flight_recorder.dumps import (
    ALL,
    LEFT,
    RIGHT,
    START_NS,
    Dump,
    faults,
    healthy,
    problems,
    write_dumps,
)


def test_each_entry_becomes_a_call(tmp_path: Path) -> None:
    dump = Dump(1).call("all_reduce", LEFT).call("broadcast", sizes=[[4]], dtype="Float")
    trace = import_trace([write_dumps(tmp_path / "d", [dump])])
    first, second = load(trace).comm.to_dict("records")
    assert (first["rank"], first["id"], first["kind"]) == (1, 0, "all_reduce")
    assert (first["group"], first["seq"], second["group"], second["seq"]) == (LEFT, 1, ALL, 1)
    assert (first["dtype"], first["input_shapes"], first["payload_bytes"]) == (
        "bfloat16",
        "[8,16]",
        8 * 16 * 2,
    )
    assert first["wire_bytes"] == 8 * 16 * 2  # 2(n-1)/n of it for n = 2
    assert second["wire_bytes"] == -1  # a broadcast with an unknown root
    assert first["issue_ns"] == START_NS + 1000
    assert first["complete_ns"] == START_NS + 1000 + 500_000
    assert (first["call_ns"], first["blocked_ns"]) == (-1, -1)
    assert (first["source_file"], first["source_line"]) == ("/home/user/train.py", 40)
    assert first["source_function"] == "step"
    assert first["stack"].splitlines()[-1] == "/v/site-packages/torch/x.py:9 all_reduce"
    assert first["native_op"] == "nccl:all_reduce"


@pytest.mark.parametrize("has_program", [True, False])
def test_the_line_of_a_call_within_a_package_is_that_of_the_program(
    has_program: bool, tmp_path: Path
) -> None:
    dump = Dump(1).call("all_reduce", LEFT)
    package = "/v/lib/python3.11/site-packages/trainer/loop.py"
    inner = {"name": "gather", "filename": package, "line": 5}
    (entry,) = dump.entries
    entry["frames"][1:1] = [inner]
    entry["frames"] = entry["frames"][: None if has_program else 2]
    (row,) = load(import_trace([write_dumps(tmp_path / "d", [dump])])).comm.to_dict("records")
    place = ("/home/user/train.py", 40) if has_program else (package, 5)
    assert (row["source_file"], row["source_line"]) == place


def test_groups_are_those_of_the_dump(tmp_path: Path) -> None:
    groups = load(import_trace([write_dumps(tmp_path / "d", healthy())])).groups
    rows = groups.set_index("name")
    assert rows.loc[LEFT, ["ranks", "size", "mesh_axis", "backend"]].tolist() == [
        "0,1",
        2,
        "tp",
        "nccl",
    ]
    assert rows.loc[ALL, "ranks"] == "0,1,2,3"


def test_json_and_pickle_tell_the_same_but_for_the_frames(tmp_path: Path) -> None:
    pickled = load(import_trace([write_dumps(tmp_path / "p", healthy())]))
    text = load(import_trace([write_dumps(tmp_path / "j", healthy(), in_json=True)]))
    places = ["source_file", "source_line", "source_function", "stack", "callers"]
    assert pickled.comm.drop(columns=places).equals(text.comm.drop(columns=places))
    assert any("only dumps in pickle format have" in lack for lack in text.run["lacks"])


@pytest.mark.parametrize("state", ["scheduled", "started", "completed"])
def test_only_a_completed_call_has_an_end(state: str, tmp_path: Path) -> None:
    frames = load(import_trace([write_dumps(tmp_path, [Dump(0).call("all_reduce", state=state)])]))
    assert (frames.comm["complete_ns"].item() >= 0) == (state == "completed")


def test_transfers_know_their_peer_and_have_no_number(tmp_path: Path) -> None:
    dump = Dump(3).call("send 1->0", RIGHT).call("recv 1<-0", RIGHT, sizes=[], out=[[4]])
    comm = load(import_trace([write_dumps(tmp_path, [dump])])).comm
    assert comm["kind"].tolist() == ["send", "recv"]
    assert comm["peer"].tolist() == [2, 2]  # the global rank: the first of group 2
    assert comm["seq"].tolist() == [-1, -1]
    assert comm["payload_bytes"].tolist() == [256, 8]


def test_a_batch_of_transfers_is_as_many_and_ends_with_its_last_entry(tmp_path: Path) -> None:
    dump = Dump(0).batch(["send 0->1", "recv 0<-1"], LEFT)
    comm = load(import_trace([write_dumps(tmp_path, [dump])])).comm
    assert comm["kind"].tolist() == ["send", "recv"]
    assert (comm["complete_ns"] > 0).all()


def test_a_batch_of_collectives_is_the_one_that_it_stands_for(tmp_path: Path) -> None:
    dump = Dump(0).batch(["_broadcast_oop"] * 4, closing="ALLGATHER_coalesced", sizes=[[2], [3]])
    dump.batch(["all_reduce"] * 3, sizes=[[5]], dtype="Float")
    comm = load(import_trace([write_dumps(tmp_path, [dump])])).comm
    assert comm["kind"].tolist() == ["all_gather", "all_reduce"]
    assert comm["payload_bytes"].tolist() == [4 * 5 * 2, 3 * 5 * 4]
    assert comm["seq"].tolist() == [1, 2]


def test_groups_of_one_name_and_other_ranks_are_two(tmp_path: Path) -> None:
    dumps = []
    for rank in range(4):
        dump = Dump(rank, ranks={"7": [0, 1] if rank < 2 else [2, 3]})
        dumps.append(dump.call("all_reduce", "7"))
    frames = load(import_trace([write_dumps(tmp_path, dumps)]))
    assert sorted(frames.groups["name"]) == ["7 [0,1]", "7 [2,3]"]
    assert faults(tmp_path) == []


def test_the_ranks_of_a_group_that_gloo_lists_before_it_has_a_name_are_the_world(
    tmp_path: Path,
) -> None:
    dumps = [Dump(rank, backend="gloo").call("all_reduce", state="scheduled") for rank in (0, 1)]
    folder = write_dumps(tmp_path, dumps)
    for path in folder.iterdir():
        values = pickle.loads(path.read_bytes())
        values["pg_config"] = {"": {"name": "", "desc": "", "ranks": "[0, 1, 2]"}}
        path.write_bytes(pickle.dumps(values))
    trace = import_trace([folder])
    assert trace.run["world_size"] == 3
    assert faults(folder) == []
    assert [row["problem"] for row in problems(folder)] == ["missing rank"]


@pytest.mark.parametrize("num", [1, 2])
def test_dumps_that_were_not_written_to_their_end_are_left_out(num: int, tmp_path: Path) -> None:
    paths = sorted(write_dumps(tmp_path, healthy()).iterdir())
    for path in paths[-num:]:
        path.write_bytes(path.read_bytes()[:-9])
    trace = import_trace(paths)
    assert {*trace.tables["comm"]["rank"]} == {*range(4 - num)}
    (sentence,) = [each for each in trace.run["lacks"] if "left out" in each]
    assert sentence.startswith(f"the contents of {num} file")
    assert paths[-num].name in sentence
    (missing,) = problems(tmp_path)
    assert (missing["problem"], missing["is_fault"]) == ("missing rank", False)


def test_only_damaged_files_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "rank0").touch()
    (tmp_path / "rank1").touch()
    with pytest.raises(EmptyTraceError, match="rank0"):
        import_trace([tmp_path])


@pytest.mark.parametrize("package", [commtrace, dtensor_core])
def test_lines_of_a_checkout_of_commtrace_are_no_lines_of_the_user(
    package: Any, tmp_path: Path
) -> None:
    dump = Dump(0).call("all_reduce")
    own = {"name": "kernel", "filename": f"{package.__path__[0]}/any/kernels.py", "line": 85}
    dump.entries[0]["frames"].insert(0, own)
    trace = import_trace([write_dumps(tmp_path, [dump])])
    assert [*trace.tables["comm"]["source_file"]] == ["/home/user/train.py"]


def test_what_came_before_a_reset_comes_first(tmp_path: Path) -> None:
    dump = Dump(0)
    for name in ("all_reduce", "broadcast", "all_gather", "barrier"):
        dump.call(name)
    old, new = dump.entries[2:], dump.entries[:2]  # two of four are overwritten in place
    for number, entry in enumerate([*old, *new]):
        entry["time_created_ns"] = 10**18 + number
    frames = load(import_trace([write_dumps(tmp_path, [dump])]))
    kinds = frames.comm["kind"].tolist()
    assert kinds == ["all_gather", "barrier", "all_reduce", "broadcast"]


def two_worlds(**last: Any) -> list[Dump]:
    """Four ranks that create their groups twice, with three calls each and then two."""
    dumps = [Dump(rank) for rank in range(4)]
    for dump in dumps:
        half = LEFT if dump.rank < 2 else RIGHT
        dump.call("broadcast").call("all_reduce", half).call("all_reduce", half)
        dump.anew().call("all_reduce", **last).call("barrier", half, **last)
    return dumps


def test_groups_that_are_made_anew_are_others(tmp_path: Path) -> None:
    frames = load(import_trace([write_dumps(tmp_path, two_worlds())]))
    calls = frames.comm[frames.comm["rank"] == 3][["group", "seq", "kind"]]
    assert calls.to_numpy().tolist() == [
        ["0", 1, "broadcast"],
        [RIGHT, 1, "all_reduce"],
        [RIGHT, 2, "all_reduce"],
        ["0#2", 1, "all_reduce"],
        [f"{RIGHT}#2", 1, "barrier"],
    ]
    ranks = frames.groups.set_index("name")["ranks"]
    assert ranks.to_dict() == {
        **{"0": "0,1,2,3", "0#2": "0,1,2,3"},
        **{LEFT: "0,1", f"{LEFT}#2": "0,1", RIGHT: "2,3", f"{RIGHT}#2": "2,3"},
    }
    assert faults(tmp_path) == []


def test_a_rank_whose_ring_has_lost_the_first_groups_has_the_second(tmp_path: Path) -> None:
    """The other ranks' dumps have both generations; the groups' numbers do not distinguish them."""
    full, short = two_worlds()[:3], two_worlds()[3:]
    write_dumps(tmp_path, full)
    write_dumps(tmp_path, short, last=2)
    comm = load(import_trace([tmp_path])).comm
    assert comm[comm["rank"] == 3]["group"].tolist() == ["0#2", f"{RIGHT}#2"]
    assert faults(tmp_path) == []


def test_a_rank_that_hangs_before_it_calls_on_the_second_groups_has_the_first(
    tmp_path: Path,
) -> None:
    dumps = two_worlds(state="started")
    del dumps[3].entries[3:]
    write_dumps(tmp_path, dumps)
    comm = load(import_trace([tmp_path])).comm
    assert comm[comm["rank"] == 3]["group"].tolist() == ["0", RIGHT, RIGHT]
    assert [row["group"] for row in problems(tmp_path) if row["is_fault"]] == ["0#2", f"{RIGHT}#2"]


def test_a_default_group_without_calls_begins_no_groups_anew(tmp_path: Path) -> None:
    dump = Dump(0).call("all_reduce", LEFT).call("all_reduce").call("all_reduce", LEFT)
    comm = load(import_trace([write_dumps(tmp_path, [dump])])).comm
    assert comm["group"].tolist() == [LEFT, ALL, LEFT]


def test_what_no_dump_contains_is_reported_by_a_notice(tmp_path: Path) -> None:
    frames = load(import_trace([write_dumps(tmp_path, healthy())]))
    notice = "\n".join(each.text for each in notices_of(frames))
    assert "Imported from flight recorder, which lacks: roots (except of gathers" in notice
    assert "did not close the recording" not in notice
    assert "killed" not in notice
    assert "No steps were marked, so there are no numbers per step.\n" in notice
    assert 'Record with detail="op" to include them' not in notice


def test_the_analyses_serve_a_dump(tmp_path: Path) -> None:
    frames = load(import_trace([write_dumps(tmp_path, healthy())]))
    for analysis in CATALOG.values():
        analysis.function(frames)
    kinds = CATALOG["by_kind"].function(frames).set_index("kind")["num_calls"].to_dict()
    assert kinds == {
        "broadcast": 3.0,
        "all_reduce": 3.0,
        "all_gather": 6.0,
        "send": 3.0,
        "recv": 3.0,
        "barrier": 3.0,
    }


def test_ranks_of_a_dump_that_lists_none_are_those_that_called(tmp_path: Path) -> None:
    """Dumps of gloo have an empty `pg_config`, and no call ever starts or completes."""
    dumps = [Dump(rank, backend="gloo") for rank in range(4)]
    for dump in dumps:
        dump.call("all_reduce", state="scheduled")
        dump.call("all_gather", LEFT if dump.rank < 2 else RIGHT, state="scheduled", out=[[2, 8]])
        document = dump.document() | {"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}
        (tmp_path / f"fr_rank_{dump.rank}").write_text(json.dumps(document))
    frames = load(import_trace([tmp_path]))
    assert frames.groups.set_index("name")["ranks"].to_dict() == {
        ALL: "0,1,2,3",
        LEFT: "0,1",
        RIGHT: "2,3",
    }
    assert faults(tmp_path) == []
    assert any("the ranks of group 1, 2" in lack for lack in frames.run["lacks"])


def test_damaged_entries_never_escape_as_a_traceback(tmp_path: Path) -> None:
    from commtrace.errors import TraceError

    chance = random.Random(1)
    for number in range(60):
        document = healthy(1)[0].document()
        entry = chance.choice(document["entries"])
        key = chance.choice(sorted(entry))
        entry[key] = chance.choice([None, "x", -1, [], {}, 2.5])
        if chance.random() < 0.3:
            del entry[key]
        path = tmp_path / f"d{number}_rank_0"
        path.write_text(json.dumps(document))
        with contextlib.suppress(TraceError):
            import_trace([path])


def test_operations_that_gloo_does_not_enter_are_counted(tmp_path: Path) -> None:
    dumps = [Dump(rank, backend="gloo") for rank in range(4)]
    for dump in dumps:
        dump.unlisted().call("all_reduce").unlisted().unlisted().call("all_reduce").call("barrier")
    lacks = import_trace([write_dumps(tmp_path / "all", dumps)]).run["lacks"]
    assert any("sends and recvs (12 by the numbers of the operations)" in each for each in lacks)
    lacks = import_trace([write_dumps(tmp_path / "ring", dumps, last=2)]).run["lacks"]
    assert any("sends and recvs and reduce-scatters" in each for each in lacks)


def test_nothing_is_unlisted_on_nccl(tmp_path: Path) -> None:
    lacks = import_trace([write_dumps(tmp_path, healthy())]).run["lacks"]
    assert not any("sends" in each for each in lacks)


def test_a_dump_without_entries_is_no_proof_of_silence(tmp_path: Path) -> None:
    dumps = [Dump(rank).unlisted() for rank in range(2)]
    frames = load(import_trace([write_dumps(tmp_path, dumps)]))
    assert any("gloo enters no sends and recvs" in each for each in frames.run["lacks"])
    (said,) = [each.text for each in notices_of(frames) if "No communication" in each.text]
    assert said.endswith("the files imported from flight recorder contain no calls.")


@pytest.mark.parametrize("prefix", ["trace_", "_dump_", "nccl_trace_rank_", "dump"])
def test_the_rank_may_follow_any_prefix_of_a_dump(prefix: str, tmp_path: Path) -> None:
    for dump in healthy():
        path = tmp_path / f"{prefix}{dump.rank}"
        path.write_bytes(pickle.dumps(dump.document(), protocol=2))
    assert [*import_trace([tmp_path]).tables["ranks"]["rank"]] == [0, 1, 2, 3]
