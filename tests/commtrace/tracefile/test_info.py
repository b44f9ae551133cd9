from __future__ import annotations

from pathlib import Path

from commtrace.tracefile import Host, read_trace, run_info, trace_of_rows
from tests.commtrace.analyze.rows import START_NS, call, group, rank_row, step, trace_of
from tests.commtrace.synthetic import write_synthetic_run

GOLD = Path(__file__).parents[2] / "gold"


def test_facts_come_from_the_tables_and_from_what_was_noted() -> None:
    info = run_info(
        trace_of(
            [call()],
            ranks=[
                rank_row(2, host="b", complete=False, clock_error_ns=7, num_ops_dropped=4),
                rank_row(0, host="a", start_ns=START_NS - 1000, num_dropped=3, device="cuda"),
                rank_row(3, host="b", clock_error_ns=9),
            ],
            groups=[group(), group("h", mesh_axis="", backend="nccl")],
            steps=[step(0, 0, 0, 1), step(2, 0, 0, 1), step(0, 1, 1, 2)],
            run={"world_size": 4, "missing_ranks": [1], "clock": "two", "nodes": 2, "torch": "2"},
        )
    )
    assert (info.world_size, info.recorded_ranks) == (4, (0, 2, 3))
    assert (info.missing_ranks, info.torn_ranks) == ((1,), (2,))
    assert info.hosts == (
        Host("a", (0,), ("cuda",), -1),
        Host("b", (2, 3), ("cpu",), 9),
    )
    assert (info.start_ns, info.duration_ns) == (START_NS - 1000, 1_001_000)
    assert (info.backends, info.mesh_axes) == (("gloo", "nccl"), ("tp",))
    assert (info.num_steps, info.num_rows["comm"]) == (2, 1)
    assert (info.num_dropped, info.num_ops_dropped) == (3, 4)
    assert (info.path, info.num_bytes, info.torch) == ("", -1, "2")
    assert info.others == {"nodes": 2}


def test_a_trace_of_nothing_has_facts_too() -> None:
    info = run_info(trace_of_rows({}, {}))
    assert (info.world_size, info.duration_ns, info.hosts) == (0, -1, ())


def test_a_run_without_a_known_end_has_no_duration() -> None:
    trace = trace_of([call(at=0)], ranks=[rank_row(0, end_ns=-1)], num_ranks=1)
    assert (run_info(trace).start_ns, run_info(trace).duration_ns) == (START_NS, -1)


def test_the_size_is_that_of_the_file_or_of_all_spools(tmp_path: Path) -> None:
    path = write_synthetic_run(tmp_path / "run.json")
    spools = tmp_path / "run.json.spools"
    assert run_info(read_trace(path)).num_bytes == path.stat().st_size
    sizes = [spool.stat().st_size for spool in spools.iterdir()]
    assert run_info(read_trace(spools)).num_bytes == sum(sizes)


def test_the_version_is_that_of_the_file() -> None:
    versions = [run_info(read_trace(GOLD / f"run-v{n}.json")).format_version for n in (1, 2, 3)]
    assert versions == [1, 2, 3]
