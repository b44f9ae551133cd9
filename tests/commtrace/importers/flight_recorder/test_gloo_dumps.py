"""Dumps that torch's flight recorder writes on gloo, against the calls that were made.

gloo enters neither transfers nor monitored barriers, reduce-scatters as the all-reduces that it
runs, and an output of its own for an all-gather of several tensors.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from commtrace.analyze import CATALOG, Frames, load
from commtrace.importers import import_trace
from dtensor_core.testing import run_processes
from dtensor_core.testing.pool import _pool

NUM_RANKS = 3
DEADLINE_S = 60
Rows = list[tuple[Any, ...]]


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


def parts(*sizes: int) -> list[torch.Tensor]:
    return [torch.ones(size) for size in sizes]


def coalesced() -> None:
    with dist._coalescing_manager():  # pyright: ignore[reportAttributeAccessIssue]
        dist.all_gather_into_tensor(ones(12, 3), ones(4, 3))
        dist.all_gather_into_tensor(ones(6), ones(2))


def functional_coalesced() -> None:
    group = dist.distributed_c10d._get_default_group().group_name
    ops = torch.ops._c10d_functional
    for tensor in ops.all_gather_into_tensor_coalesced([ones(4, 3), ones(2)], 3, group):
        ops.wait_tensor(tensor)


def transfers(rank: int) -> None:
    """Send and receive 10 times on all ranks together; no transfer is entered."""
    if rank == 0:
        dist.send(ones(4), 1)
        dist.send(ones(4), 1)
    elif rank == 1:
        dist.recv(ones(4), 0)
        dist.recv(ones(4))
    neighbours = [
        dist.P2POp(dist.isend, ones(4), (rank + 1) % NUM_RANKS),
        dist.P2POp(dist.irecv, ones(4), (rank - 1) % NUM_RANKS),
    ]
    for work in dist.batch_isend_irecv(neighbours):
        work.wait()


def program(rank: int) -> list[tuple[Callable[[], Any], Rows]]:
    """Calls, and kind, payload, root and shapes of their entries."""
    lists = [ones(4, 3) for _ in range(NUM_RANKS)]
    shapes = ";".join(["[4,3]"] * NUM_RANKS)
    gathers, scatters = rank == 1, rank == 2
    uneven, mine = [1, 2, 3], rank + 1
    return [
        (lambda: dist.all_reduce(ones(4, 3)), [("all_reduce", 48, -1, "[4,3]", "[4,3]")]),
        (lambda: dist.all_reduce_coalesced([ones(4, 3), ones(5)]),
         [("all_reduce", 68, -1, "[4,3];[5]", "[4,3];[5]")]),
        (lambda: dist.all_gather(lists, ones(4, 3)),
         [("all_gather", 144, -1, "[4,3]", "[3,4,3]")]),
        (lambda: dist.all_gather_into_tensor(ones(12, 3), ones(4, 3)),
         [("all_gather", 144, -1, "[4,3]", "[3,4,3]")]),
        (lambda: dist.all_gather_coalesced([[ones(4, 3), ones(2)] for _ in range(3)],
                                           [ones(4, 3), ones(2)]),
         [("all_gather", 168, -1, "[4,3];[2]", "")]),
        (coalesced, [("all_gather", 168, -1, "[4,3];[2]", "")]),
        (functional_coalesced, [("all_gather", 168, -1, "[4,3];[2]", "")]),
        (lambda: dist.reduce_scatter(ones(2), parts(2, 2, 2)),
         [("all_reduce", 8, -1, "[2]", "[2]")] * 3),
        (lambda: dist.reduce_scatter(ones(mine), parts(*uneven)),
         [("all_reduce", 4 * size, -1, f"[{size}]", f"[{size}]") for size in uneven]),
        (lambda: dist.reduce_scatter_tensor(ones(2), ones(6)),
         [("all_reduce", 24, -1, "[6]", "[6]")]),
        (lambda: dist.broadcast(ones(4, 3), 1), [("broadcast", 48, -1, "[4,3]", "[4,3]")]),
        (lambda: dist.reduce(ones(4, 3), 1), [("reduce", 48, -1, "[4,3]", "[4,3]")]),
        (lambda: dist.gather(ones(4, 3), lists if gathers else None, 1),
         [("gather", 144, 1 if gathers else -1, "[4,3]", shapes if gathers else "")]),
        (lambda: dist.scatter(ones(4, 3), lists if scatters else None, 2),
         [("scatter", 144, 2 if scatters else -1, shapes if scatters else "", "[4,3]")]),
        (lambda: transfers(rank), []),
        (lambda: dist.all_to_all_single(ones(6), ones(6)),
         [("all_to_all", 24, -1, "[6]", "[6]")]),
        (lambda: dist.all_to_all_single(ones(3 * mine), ones(6), [mine] * 3, uneven),
         [("all_to_all", 24, -1, "[6]", f"[{3 * mine}]")]),
        (lambda: dist.all_to_all(parts(2, 2, 2), parts(2, 2, 2)),
         [("all_to_all", 24, -1, "[2];[2];[2]", "[2];[2];[2]")]),
        (lambda: dist.all_reduce(torch.eye(3).to_sparse()),
         [("all_reduce", -1, -1, "[3,3]", "[3,3]")]),
        (dist.barrier, [("barrier", 0, -1, "", "")]),
    ]  # fmt: skip


def dump(folder: Path, **how: bool) -> None:
    """Write the dump of this rank, as a pickle and as JSON."""
    from torch._C import _distributed_c10d as c10d

    form, rank = "_".join(how), dist.get_rank()
    (folder / f"text{form}_rank{rank}").write_bytes(c10d._dump_fr_trace_json(**how))  # pyright: ignore
    how = {"includeStackTraces": False} | how if how else how
    (folder / f"pickled{form}_rank{rank}").write_bytes(c10d._dump_fr_trace(**how))  # pyright: ignore


def record(folder: Path) -> None:
    """Make the calls, and write dumps of all forms."""
    for call, _ in program(dist.get_rank()):
        call()
    dump(folder)
    dump(folder, onlyActive=True)
    dump(folder, includeCollectives=False)
    dist.barrier()


def hang(folder: Path) -> None:
    """Dump while rank 0 has not issued a collective that the others are in."""
    rank = dist.get_rank()
    dist.all_reduce(ones(4))
    dist.monitored_barrier()
    dist.all_reduce(ones(4))
    group = dist.new_group([0, 2], group_desc="pair")
    if rank != 1:
        dist.all_reduce(ones(4), group=group)
    work = dist.all_reduce(ones(4), async_op=True) if rank else None
    dump(folder)
    until = time.monotonic() + DEADLINE_S
    while len(list(folder.glob("text_rank*"))) < NUM_RANKS and time.monotonic() < until:
        time.sleep(0.01)
    work = work or dist.all_reduce(ones(4), async_op=True)
    assert work is not None
    work.wait()


def recorded(body: Callable[[Path], None], folder: Path) -> Path:
    _pool.kill()  # processes reused from other tests have older entries in their flight recorders
    run_processes(body, NUM_RANKS, folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(record, tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(hang, tmp_path_factory.mktemp("hung"))


def imported(folder: Path, form: str) -> Frames:
    return load(import_trace(sorted(folder.glob(f"{form}_rank*"))))


def rows_of(frames: Frames, rank: int) -> Rows:
    columns = ["kind", "payload_bytes", "root", "input_shapes", "output_shapes"]
    rows = frames.comm[frames.comm["rank"] == rank].sort_values("id")
    return list(rows[columns].itertuples(index=False, name=None))


@pytest.mark.parametrize("form", ["pickled", "text", "pickledonlyActive", "textonlyActive"])
def test_each_collective_has_the_payload_and_root_of_its_call(made: Path, form: str) -> None:
    frames = imported(made, form)
    for rank in range(NUM_RANKS):
        assert rows_of(frames, rank) == [row for _, rows in program(rank) for row in rows]
    assert set(frames.comm["seq"]) == set(range(1, 1 + len(rows_of(frames, 0))))
    assert set(frames.comm["complete_ns"]) == {-1}
    assert "partial_dumps" not in frames.run
    assert CATALOG["consistency"].function(frames).empty


def test_operations_without_an_entry_of_their_own_are_counted(made: Path) -> None:
    lacks = imported(made, "pickled").run["lacks"]
    (said,) = [each for each in lacks if "gloo enters no sends" in each]
    found = re.match(r"sends and recvs \((\d+) by .*\) and reduce-scatters \((\d+) of the", said)
    assert found is not None
    assert [int(number) for number in found.groups()] == [10, 7 * NUM_RANKS]
    (said,) = [each for each in imported(made, "text").run["lacks"] if "gloo enters" in each]
    assert "sends and recvs (10 by the numbers of the operations) and reduce-scatters." in said
    assert any(each.startswith("blocked times, and times of completion") for each in lacks)


@pytest.mark.parametrize("form", ["pickledincludeCollectives", "textincludeCollectives"])
def test_a_dump_without_collectives_has_no_calls(made: Path, form: str) -> None:
    frames = imported(made, form)
    assert len(frames.comm) == 0
    assert any("gloo enters no sends and recvs" in each for each in frames.run["lacks"])


@pytest.mark.parametrize("form", ["pickled", "text"])
def test_the_rank_that_did_not_issue_a_collective_is_named(hung: Path, form: str) -> None:
    frames = imported(hung, form)
    problems = CATALOG["consistency"].function(frames)
    fault, loss = problems.to_dict("records")
    assert (fault["problem"], fault["ranks"], fault["group"]) == ("missing call", "0", "0")
    assert "Rank 0 never arrived at all_reduce" in fault["explanation"]
    assert (loss["problem"], loss["ranks"]) == ("lost calls", "0,1,2")
    assert "did not enter them, such as gloo's monitored barriers" in loss["explanation"]
    groups = frames.groups.set_index("description")["ranks"]
    assert groups.to_dict() == {"default_pg": "0,1,2", "pair": "0,2"}
