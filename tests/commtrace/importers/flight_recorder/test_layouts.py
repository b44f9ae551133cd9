"""Dumps in the layouts of every release of torch, against the calls that were made."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from commtrace.analyze import CATALOG, Frames, load, notices_of
from commtrace.importers import import_trace
from commtrace.importers.flight_recorder.fields import FIELDS
from tests.commtrace.importers.flight_recorder.dumps import ALL, LEFT, RIGHT, Dump, write_dumps
from tests.commtrace.importers.flight_recorder.layouts import DISTINCT, LAYOUTS
from tests.commtrace.importers.flight_recorder.torchcomms_dumps import Comms

ROOT = Path(__file__).parents[4]

UNKNOWN = -1
FORMS = [(torch, False) for torch in LAYOUTS] + [
    (torch, True) for torch, layout in LAYOUTS.items() if layout.has_json
]


@dataclass(frozen=True)
class Call:
    """A call that a rank made; payload and root as a dump of torch 2.13 shows them."""

    kind: str
    group: str
    number: int = UNKNOWN
    payload: int = UNKNOWN
    peer: int = UNKNOWN
    root: int = UNKNOWN


@dataclass
class Program:
    """One rank of a program: its dump, and the calls that it made."""

    dump: Dump
    calls: list[Call] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return self.dump.rank

    def number(self, group: str) -> int:
        """Number of the next collective on a group."""
        return 1 + sum(call.number >= 0 for call in self.calls if call.group == group)

    def made(self, kind: str, group: str, payload: int, **facts: int) -> None:
        """Note a collective."""
        self.calls.append(Call(kind, group, self.number(group), payload, **facts))

    def transfer(self, kind: str, group: str, peer: int, payload: int) -> None:
        """Note a send or a recv."""
        self.calls.append(Call(kind, group, payload=payload, peer=peer))


def step(of: Program) -> None:
    """Issue each sort of call that NCCL enters in a way of its own; some on a part of the ranks."""
    dump, rank = of.dump, of.rank
    half, first = (LEFT, 0) if rank < 2 else (RIGHT, 2)
    own, other = rank - first, 1 - (rank - first)
    enters = dump.layout
    dump.call("broadcast", sizes=[[4]], dtype="Float")
    of.made("broadcast", ALL, 16)
    dump.call("_all_gather_base", half, sizes=[[4]], out=[[8]])
    of.made("all_gather", half, 16)
    if rank in (0, 3):  # numbers on the default group must not depend on it
        peer = 3 - rank
        dump.batch([f"send {rank}->{peer}", f"recv {rank}<-{peer}"], sizes=[[3]])
        of.transfer("send", ALL, peer, 6)
        of.transfer("recv", ALL, peer, 6)
    dump.call("all_reduce", half)
    of.made("all_reduce", half, 256)
    dump.batch([f"send {own}->{other}", f"recv {own}<-{other}"], half)
    of.transfer("send", half, first + other, 256)
    of.transfer("recv", half, first + other, 256)
    dump.batch(["_broadcast_oop"] * 4, closing="ALLGATHER_coalesced", sizes=[[2]])
    uneven = ("all_gather", 16) if enters.enters_parts else ("unknown", UNKNOWN)
    of.made(uneven[0], ALL, uneven[1])
    dump.call("reduce_scatter_tensor_coalesced", sizes=[[8], [4]], out=[[2], [1]])
    of.made("reduce_scatter", ALL, 24)
    if rank < 2:
        dump.call("send 0->1" if rank == 0 else "recv 1<-0", sizes=[[5]])
        of.transfer("send" if rank == 0 else "recv", ALL, 1 - rank, 10)
    dump.rooted("gather", [2, 3], root=2)
    of.made("gather", ALL, 4 * 6 * 2, root=2 if rank == 2 else UNKNOWN)
    dump.rooted("scatter", [2, 3], root=1)
    of.made("scatter", ALL, 4 * 6 * 2, root=1 if rank == 1 else UNKNOWN)
    dump.all_to_all([[1 + rank + to] for to in range(4)], [[1 + rank + to] for to in range(4)])
    sent = 2 * (10 + 4 * rank) if enters.enters_lists else UNKNOWN
    of.made("all_to_all", ALL, sent)
    dump.call("all_to_all", sizes=[[12]], out=[[12]], function="all_to_all_single")
    of.made("all_to_all", ALL, 24)
    dump.barrier()
    kind, payload = ("all_reduce", 4) if enters.barrier == "all_reduce" else ("barrier", 0)
    of.made(kind, ALL, payload)


def program(torch: str, num_steps: int = 2) -> list[Program]:
    ranks = [Program(Dump(rank, torch=torch)) for rank in range(4)]
    for _ in range(num_steps):
        for rank in ranks:
            step(rank)
    return ranks


def imported(folder: Path, ranks: list[Program], **how: Any) -> Frames:
    return load(import_trace([write_dumps(folder, [each.dump for each in ranks], **how)]))


def problems(frames: Frames) -> list[dict[str, Any]]:
    return CATALOG["consistency"].function(frames).to_dict("records")


def faults(frames: Frames) -> list[tuple[str, str, str, int]]:
    return [
        (row["problem"], row["ranks"], row["group"], row["number"])
        for row in problems(frames)
        if row["is_fault"]
    ]


def calls_of(frames: Frames, rank: int) -> list[Call]:
    rows = frames.comm[frames.comm["rank"] == rank].sort_values("id")
    columns = ["kind", "group", "seq", "payload_bytes", "peer", "root"]
    return [Call(*row) for row in rows[columns].itertuples(index=False, name=None)]


@pytest.mark.parametrize(("torch", "in_json"), FORMS)
def test_every_call_of_every_layout_is_read(torch: str, in_json: bool, tmp_path: Path) -> None:
    ranks = program(torch)
    frames = imported(tmp_path, ranks, in_json=in_json)
    for rank in ranks:
        expected = list(rank.calls)
        if in_json and not rank.dump.layout.enters_lists:
            # Without a stack, a list of tensors cannot be told from one tensor.
            first = 2 * (1 + rank.rank)
            expected = [
                Call(c.kind, c.group, c.number, first) if c.kind == "all_to_all" and c.payload < 0
                else c for c in expected
            ]  # fmt: skip
        assert calls_of(frames, rank.rank) == expected
    assert (frames.comm["complete_ns"] > frames.comm["issue_ns"]).all()
    assert problems(frames) == []


@pytest.mark.parametrize("torch", DISTINCT)
def test_a_rank_that_did_not_issue_a_collective_is_named(torch: str, tmp_path: Path) -> None:
    ranks = program(torch)
    for rank in ranks:
        if rank.rank != 3:
            rank.dump.call("all_reduce", state="started")
    assert faults(imported(tmp_path, ranks)) == [("missing call", "3", ALL, 17)]


@pytest.mark.parametrize("torch", DISTINCT)
def test_a_batch_of_transfers_that_hangs_is_found(torch: str, tmp_path: Path) -> None:
    ranks = program(torch)
    ranks[0].dump.batch(["send 0->1", "recv 0<-1"], LEFT, state="started")
    frames = imported(tmp_path, ranks)
    assert faults(frames) == [("missing call", "0,1", LEFT, UNKNOWN)]
    assert (frames.comm["complete_ns"] < 0).sum() == 2


@pytest.mark.parametrize("last", [1, 2, 5, 9, 14, 23])
@pytest.mark.parametrize("torch", DISTINCT)
def test_a_ring_that_lost_calls_of_any_layout_accuses_nobody(
    torch: str, last: int, tmp_path: Path
) -> None:
    ranks = program(torch)
    for rank in ranks:
        write_dumps(tmp_path, [rank.dump], last=last + rank.rank)
    frames = load(import_trace([tmp_path]))
    assert faults(frames) == []


@pytest.mark.parametrize("torch", DISTINCT)
def test_a_hang_behind_lost_calls_is_found_if_numbers_are_those_of_collectives(
    torch: str, tmp_path: Path
) -> None:
    ranks = program(torch)
    for rank in ranks:
        for group in (ALL, LEFT if rank.rank < 2 else RIGHT):
            if rank.rank != 1:
                rank.dump.call("all_reduce", group, state="started")
    frames = imported(tmp_path, ranks, last=20)
    if LAYOUTS[torch].counts_transfers_apart:
        assert faults(frames) == [("missing call", "1", ALL, 17), ("missing call", "0,1", LEFT, 5)]
    else:
        assert faults(frames) == []
        (row,) = [row for row in problems(frames) if row["problem"] == "not compared"]
        assert row["ranks"] == "0,1,2,3"
        assert any(
            "the numbers of the collectives on group" in each for each in frames.run["lacks"]
        )


@pytest.mark.parametrize("torch", DISTINCT)
def test_the_end_of_a_lost_batch_of_transfers_is_no_collective(torch: str, tmp_path: Path) -> None:
    """An entry of another group is between the parts of the batch, which are lost, and its end."""
    dumps = []
    for rank in range(2):
        dump = Dump(rank, torch=torch).call("broadcast", LEFT).call("broadcast", LEFT)
        dump.batch([f"send {rank}->{1 - rank}"], LEFT)
        dump.call("all_reduce").call("all_reduce", LEFT)
        *_, closing, other, last = dump.entries
        dump.entries = [other | {"record_id": 3}, closing | {"record_id": 4}, last]
        dumps.append(dump)
    frames = load(import_trace([write_dumps(tmp_path, dumps)]))
    if LAYOUTS[torch].counts_transfers_apart:
        assert frames.comm["kind"].tolist() == ["all_reduce", "all_reduce"] * 2
    assert [fault for fault in faults(frames) if fault[0] != "missing rank"] == []


def without_transfers(torch: str) -> list[Program]:
    ranks = [Program(Dump(rank, torch=torch)) for rank in range(4)]
    for rank in ranks:
        for _ in range(20):
            rank.dump.call("all_reduce", LEFT if rank.rank < 2 else RIGHT).call("broadcast")
    return ranks


@pytest.mark.parametrize("torch", DISTINCT)
def test_numbers_of_all_layouts_are_comparable_without_batches(torch: str, tmp_path: Path) -> None:
    ranks = without_transfers(torch)
    for rank in ranks[1:]:
        rank.dump.call("all_reduce", state="started")
    assert faults(imported(tmp_path, ranks, last=8)) == [("missing call", "0", ALL, 21)]


@pytest.mark.parametrize("torch", DISTINCT)
def test_calls_in_flight_alone_name_the_rank_that_is_known_to_lack_one(
    torch: str, tmp_path: Path
) -> None:
    ranks = without_transfers(torch)
    for rank in ranks[1:]:
        rank.dump.call("all_reduce", state="started").call("broadcast", state="scheduled")
    frames = imported(tmp_path, ranks, only_active=True)
    known = [("missing call", "0", ALL, 21)] if LAYOUTS[torch].has_status else []
    assert faults(frames) == known
    assert frames.comm["kind"].tolist() == ["all_reduce", "broadcast"] * 3
    reasons = [row["explanation"] for row in problems(frames) if "has lost" in row["explanation"]]
    assert reasons
    assert all("its dump does not list the calls that had ended" in each for each in reasons)
    assert any("list only those in flight" in each for each in frames.run["lacks"])


def test_ranks_that_each_lack_a_call_of_the_other_by_their_status_are_in_a_deadlock(
    tmp_path: Path,
) -> None:
    ranks = without_transfers("2.13")
    ranks[0].dump.call("all_reduce", LEFT, state="started")
    for rank in ranks[1:]:
        rank.dump.call("all_reduce", state="started")
    frames = imported(tmp_path, ranks, only_active=True)
    assert "unsure_ranks" not in frames.run
    assert faults(frames) == [("deadlock", "0,1", LEFT, 21)]


@pytest.mark.parametrize("torch", DISTINCT)
def test_calls_in_flight_alone_accuse_nobody_who_went_on(torch: str, tmp_path: Path) -> None:
    """Rank 0, the root, has completed the broadcast; the others are still in it."""
    ranks = without_transfers(torch)
    ranks[0].dump.call("broadcast")
    for rank in ranks[1:]:
        rank.dump.call("broadcast", state="started")
    frames = imported(tmp_path, ranks, only_active=True)
    in_flight = [("in flight", "", ALL, 21)] if LAYOUTS[torch].has_status else []
    assert faults(frames) == in_flight


@pytest.mark.parametrize("torch", DISTINCT)
def test_parts_of_completed_batches_are_no_calls_in_flight(torch: str, tmp_path: Path) -> None:
    ranks = program(torch)
    for rank in ranks:
        rank.dump.call("all_reduce", state="started")
    frames = imported(tmp_path, ranks, only_active=True)
    assert faults(frames) == []
    assert frames.comm["kind"].tolist() == ["all_reduce"] * 4


@pytest.mark.parametrize("in_json", [False, True])
def test_dumps_without_collectives_are_no_proof_of_silence(in_json: bool, tmp_path: Path) -> None:
    frames = imported(tmp_path, program("2.13"), collectives=False, in_json=in_json)
    assert len(frames.comm) == 0
    assert faults(frames) == []
    assert any("how many each member" in each.text for each in notices_of(frames))
    assert frames.run["partial_dumps"] == [0, 1, 2, 3]


def test_a_dump_without_collectives_among_others_accuses_nobody(tmp_path: Path) -> None:
    ranks = program("2.13")
    for rank in ranks[1:]:
        rank.dump.call("all_reduce", state="started")
    write_dumps(tmp_path, [ranks[0].dump], collectives=False)
    write_dumps(tmp_path, [rank.dump for rank in ranks[1:]])
    frames = load(import_trace([tmp_path]))
    assert faults(frames) == []
    assert frames.run["unsure_ranks"] == [0]


def test_a_pickle_without_stacks_lacks_source_lines(tmp_path: Path) -> None:
    frames = imported(tmp_path, program("2.13"), stacks=False)
    assert set(frames.comm["source_file"]) == {""}
    assert any("written without stacks" in each for each in frames.run["lacks"])


def test_the_documentation_has_every_field_of_every_layout() -> None:
    text = (ROOT / "docs" / "exchange.md").read_text("utf-8")
    table = text.partition("| field | use |")[2].partition("\n\n")[0]
    documented = {
        name
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)`", row.removeprefix("|").partition("|")[0])
    }
    documents = [Dump(0, torch=torch).call("all_reduce", duration_ms=1.0).document()
                 for torch in LAYOUTS]  # fmt: skip
    documents.append(Comms(0, {"world": [0]}).call("all_reduce", "world").document())
    found = {"rank", "nccl_comm_state", "input_split_sizes", "output_split_sizes"}
    for document in documents:
        (entry,) = document["entries"]
        found |= {*document, *entry}
        for about in (*document["pg_config"].values(), *document.get("pg_status", {}).values()):
            found |= set(about)
        for frame in entry.get("frames", []):
            found |= set(frame)
    in_use_column = {"filename", "line"}  # of `frames`
    assert documented | in_use_column == found
    assert set(FIELDS) <= documented
    releases = text.partition("| torch | version |")[2].partition("\n\n")[0]
    for torch, layout in LAYOUTS.items():
        rows = [row.split("|") for row in releases.splitlines()[2:]]
        assert any(
            _is_of(torch, row[1].strip()) and row[2].strip() == layout.version for row in rows
        ), torch


def _is_of(torch: str, releases: str) -> bool:
    minor = torch.partition(".")[2]
    return int(minor) in _minors(releases) if minor else torch == releases


def _minors(releases: str) -> range:
    """Return the minor releases of `2.6, 2.7`, `2.9 to 2.14` or `2.4`."""
    minors = [int(each) for each in re.findall(r"2\.(\d+)", releases)] or [-1]
    return range(min(minors), max(minors) + 1)
