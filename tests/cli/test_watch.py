"""`commtrace watch`: what it prints, its exit codes, and its refusals."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from commtrace.errors import UsageError
from commtrace.tracefile import merge_spools
from commtrace.tracefile.liveness import boot
from commtrace_cli.alarms import seconds_of, share_of
from commtrace_cli.main import main
from commtrace_cli.watch import CODES, folder_of
from tests.cli.conftest import Commtrace
from tests.commtrace.live.growing import SECOND, START_NS, Rank, Run, Time

HERE = {"host": socket.gethostname(), "boot": boot(), "pid": os.getpid()}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run of the present, whose ranks are all this process."""
    with Run(tmp_path / "RUN.comm", Time((time.time_ns() - START_NS) / SECOND - 90)) as run:
        yield run


def hanging(run: Run, num_ranks: int = 3) -> list[Rank]:
    """Ranks; rank 1 has been missing from an all-reduce for 90 seconds."""
    ranks = run.start_all(num_ranks, **HERE)
    calls = [rank.issue() for rank in ranks]
    for rank, call in zip(ranks, calls, strict=True):
        rank.end(call)
    for rank in (ranks[0], *ranks[2:]):
        rank.issue()
    run.flush()
    run.pass_(90)
    return ranks


def test_once_shows_the_state_of_a_hanging_run(commtrace: Commtrace, run: Run) -> None:
    hanging(run)
    ended = commtrace("watch", run.folder, "--once", columns=100)
    assert ended.code == 0
    text = ended.out
    assert "3 of 3 ranks running" in text
    assert "Rank 1 made no further call; others wait at train.py:7" in text.replace("\n", " ")
    assert "hang for 1 min 3" in text
    assert "all_reduce 1   2 of 3  rank 1" in text
    assert "1     outside of communication" in text
    assert "after train.py:7" in text


def test_json_has_one_line_for_each_refresh_and_null_for_unknown(
    commtrace: Commtrace, run: Run
) -> None:
    hanging(run)
    (line,) = commtrace("watch", run.folder, "--once", "--json").out.splitlines()
    state = json.loads(line)
    assert state["groups"][0]["missing"] == [1]
    assert state["steps"]["per_s"] is None
    assert [each["rank"] for each in state["ranks"] if each["is_hanging"]] == [0, 2]


def test_an_alarm_ends_with_its_code_and_runs_the_command(
    commtrace: Commtrace, run: Run, tmp_path: Path
) -> None:
    hanging(run)
    out = tmp_path / "out"
    command = f'echo "$COMMTRACE_PROBLEM $COMMTRACE_RANKS $COMMTRACE_TEXT" > {out}; exit 9'
    ended = commtrace("watch", run.folder, "--on-hang", "60s", "--exec", command)
    assert ended.code == CODES["hang"] == 4
    assert out.read_text() == ("hang 1 Rank 1 made no further call; others wait at train.py:7\n")
    assert "hang for 1 min" in ended.out
    assert "ended with code 9" in ended.err


def test_of_two_ranks_the_one_that_never_arrived_is_named_to_the_command(
    commtrace: Commtrace, run: Run, tmp_path: Path
) -> None:
    hanging(run, num_ranks=2)
    out = tmp_path / "out"
    command = f'echo "$COMMTRACE_RANKS" > {out}'
    commtrace("watch", run.folder, "--on-hang", "60s", "--exec", command)
    assert out.read_text() == "1\n"


def test_a_hang_that_is_shorter_than_asked_is_no_alarm(commtrace: Commtrace, run: Run) -> None:
    hanging(run)
    ended = commtrace("watch", run.folder, "--once", "--on-hang", "10m")
    assert ended.code == 0
    assert "waiting for 1 min" in ended.out


def test_a_mismatch_ends_with_code_6(commtrace: Commtrace, run: Run) -> None:
    for rank, kind in zip(run.start_all(2, **HERE), ("all_reduce", "all_gather"), strict=True):
        rank.issue(kind)
    run.flush()
    ended = commtrace("watch", run.folder, "--on-mismatch")
    assert ended.code == CODES["mismatch"] == 6
    text = ended.out.replace("\n", " ")
    assert "Ranks 0, 1 differ in the kind of their calls at train.py:7 (rank 1: all_gather" in text


def test_a_straggler_ends_with_code_5(commtrace: Commtrace, run: Run) -> None:
    ranks = run.start_all(2, **HERE)
    run.time.pass_(86)
    for _ in range(8):
        first = ranks[0].issue()
        run.time.pass_(0.4)
        ranks[0].end(first)
        ranks[1].end(ranks[1].issue())
    run.flush()
    ended = commtrace("watch", run.folder, "--on-straggler", "20%", "--once")
    assert ended.code == CODES["straggler"] == 5
    assert "All others waited for rank 1 in 3" in ended.out.replace("\n", " ")


def test_a_run_that_has_ended_ends_watching(commtrace: Commtrace, run: Run) -> None:
    for rank in run.start_all(2, **HERE):
        rank.close()
    ended = commtrace("watch", run.folder)
    assert ended.code == 0
    assert "all 2 ranks ended" in ended.out
    assert ended.err.startswith("note: this run was over before watching began")


def test_a_run_that_ends_while_it_is_watched_was_not_over_before(
    commtrace: Commtrace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = run.start(0, 1, **HERE)
    rank.flush()
    run.pass_(90)
    monkeypatch.setattr("time.sleep", lambda _: rank.stream.closed or rank.close())
    ended = commtrace("watch", run.folder)
    assert (ended.code, ended.err) == (0, "")


def test_ranks_that_died_end_watching_with_code_1(commtrace: Commtrace, run: Run) -> None:
    for rank in run.start_all(2, **{**HERE, "pid": 1 << 30}):
        rank.issue()
    run.flush()
    ended = commtrace("watch", run.folder)
    assert ended.code == 1
    assert "Ranks 0, 1 are dead" in ended.out


def test_many_ranks_that_do_the_same_share_a_line(commtrace: Commtrace, run: Run) -> None:
    for rank in run.start_all(40, **HERE):
        if rank.number != 17:
            rank.issue()
    run.flush()
    run.pass_(90)
    out = commtrace("watch", run.folder, "--once", columns=120).out
    assert "0-16, 18-39 (39)" in out
    assert len(out.splitlines()) < 20


def test_what_is_not_seen_is_noted_once_in_a_log(
    commtrace: Commtrace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = run.start(0, 1, **HERE, run={"every": 100})
    rank.flush({"num_dropped": 2})
    run.pass_(90)
    numbers = iter((3, 1000))

    def sleep(_: float) -> None:
        number = next(numbers, None)
        rank.close() if number is None else rank.flush({"num_dropped": number})

    monkeypatch.setattr("time.sleep", sleep)
    out = commtrace("watch", run.folder).out
    assert out.count("note: ") == 2
    assert "note: only every 100th step is recorded: calls of other steps, and hangs" in out
    assert "note: 2 calls of rank 0 dropped: not all of their calls are seen" in out
    assert "all 1 rank ended" in out


@pytest.mark.parametrize(
    ("name", "is_closed", "code"),
    [("RUN.comm", True, 3), ("run.json", True, 0), ("run.json", False, 1)],
)
def test_a_folder_that_vanishes_is_the_end_only_if_it_was_merged(
    commtrace: Commtrace,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    is_closed: bool,
    code: int,
) -> None:
    run.folder = run.folder.with_name({"RUN.comm": name}.get(name, f"{name}.spools"))
    rank = run.start(0, 1, **HERE)
    rank.end(rank.issue())
    run.flush()
    run.pass_(90)

    def end(_: float) -> None:
        if is_closed:
            rank.close()
        if "json" in name:
            merge_spools(run.folder, run.folder.with_suffix(""))
        run.folder.rename(run.folder.with_name("elsewhere"))

    monkeypatch.setattr("time.sleep", end)
    ended = commtrace("watch", run.folder.with_name(name), columns=200)
    assert ended.code == code
    assert ("died: Rank 0 is dead: the process is gone" in ended.out) == (code == 1)
    assert ("all 1 rank ended" in ended.out) == (code == 0)
    vanished = f"error: cannot watch {run.folder} any longer\n  found: the folder has vanished\n"
    assert ended.err.startswith("" if "json" in name else vanished)


def test_a_rank_that_died_of_a_fault_of_another_is_not_the_culprit(
    commtrace: Commtrace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.folder = run.folder.with_name("run.json.spools")
    ranks = run.start_all(3, **HERE)
    for rank, dtype in zip(ranks, ("float32", "float64", "float32"), strict=True):
        rank.issue(dtype=dtype)
    run.flush()
    for rank in ranks[1:]:
        rank.close()
    run.time.pass_(90)

    def end(_: float) -> None:
        merge_spools(run.folder, run.folder.with_suffix(""))
        run.folder.rename(run.folder.with_name("elsewhere"))

    monkeypatch.setattr("time.sleep", end)
    told = [
        "--on-hang",
        "600s",
        "--exec",
        f"echo $COMMTRACE_RANKS > {run.folder.with_name('told')}",
    ]
    ended = commtrace("watch", run.folder.with_name("run.json"), *told, columns=200)
    assert ended.code == 1
    assert re.search(r"^died.*: Rank 1 differs in the element type of its call", ended.out, re.M)
    assert run.folder.with_name("told").read_text() == "1\n"


@pytest.mark.parametrize("columns", [55, 80, 100])
def test_a_narrow_terminal_keeps_ranks_and_lines(
    commtrace: Commtrace, run: Run, columns: int
) -> None:
    file = f"/home/user/{'deep/' * 20}train.py"
    for rank in run.start_all(12, **HERE):
        if rank.number != 1:
            rank.issue("all_gather_into_tensor_coalesced", source_file=file, source_line=12345)
    run.flush()
    run.pass_(90)
    out = commtrace("watch", run.folder, "--once", columns=columns).out
    lines = out[out.index("Rank  Now") :].splitlines()
    assert all(len(each) <= columns for each in lines)
    assert lines[0].split() == ["Rank", "Now", "For", "Step", "Blocked", "At"]
    rows = {int(each[:4]): each for each in lines[1:13]}
    assert sorted(rows) == list(range(12))
    assert rows[11][6:].startswith("all_gath")
    assert rows[11].endswith(".py:12345")
    assert "1 min 30 s" in rows[11]


def test_no_answer_to_dump_ends_with_code_7(
    commtrace: Commtrace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace_cli.watch._ANSWER_S", 0.5)
    hanging(run)
    ended = commtrace("watch", run.folder, "--dump", "1")
    assert ended.code == 7
    assert ended.err.startswith("no rank answered: none of them is running")
    assert json.loads((run.folder / "dump.request").read_text())["ranks"] == [1]


def test_metrics_are_served_until_the_run_ends(
    commtrace: Commtrace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = run.start(0, 1, **HERE)
    rank.end(rank.issue())
    rank.flush()
    run.pass_(90)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    texts: list[str] = []

    def scrape(_: float) -> None:
        if not rank.stream.closed:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                texts.append(answer.read().decode())
            rank.close()

    monkeypatch.setattr("time.sleep", scrape)
    ended = commtrace("watch", run.folder, "--metrics", str(port), columns=200)
    assert (ended.code, ended.err) == (
        0,
        f"metrics of {run.folder} at http://127.0.0.1:{port}/metrics\n",
    )
    (text,) = texts
    assert 'commtrace_run_info{run="RUN.comm"} 1.0' in text
    assert 'commtrace_calls_total{group="0",kind="all_reduce"} 1.0' in text
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10)


@pytest.mark.parametrize(
    ("address", "lines"),
    [
        (
            "port",
            [
                "error: cannot use --metrics port",
                "  why: a port up to 65535 is needed, or an address of this machine and a port",
                "  try: --metrics 9464, or --metrics 0.0.0.0:9464 for scrapes from other machines",
            ],
        ),
        (
            "192.0.2.1:0",
            [
                "error: cannot serve metrics on port 0 of 192.0.2.1",
                "  found: cannot assign requested address",
                "  try: --metrics 0, for any free port of the loopback",
            ],
        ),
    ],
)
def test_addresses_at_which_no_metrics_can_be_served(
    commtrace: Commtrace, run: Run, address: str, lines: list[str]
) -> None:
    hanging(run)
    ended = commtrace("watch", run.folder, "--once", "--metrics", address)
    assert (ended.code, ended.err.splitlines(), ended.out) == (2, lines, "")


def test_metrics_without_their_package_are_refused(
    commtrace: Commtrace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging(run)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    ended = commtrace("watch", run.folder, "--metrics", "0")
    assert ended.code == 2
    assert "  found: no prometheus_client\n" in ended.err
    assert "  try: pip install 'commtrace[metrics]'\n" in ended.err
    assert commtrace("watch", run.folder, "--once").code == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--once",), "error: cannot watch RUN.comm\n  found: no such folder\n"),
        (("--on-hang", "soon"), "error: cannot use --on-hang soon\n  why: a duration is needed\n"),
        (("--on-straggler", "120%"), "error: cannot use --on-straggler 120%\n"),
        (("--exec", "ls"), "error: cannot run a command without an alarm\n"),
        (
            ("--dump", "x"),
            "error: cannot read the ranks 'x'\n"
            "  why: ranks are numbers or ranges, separated by commas\n"
            "  try: --dump 0,1, or --dump 0-3,8\n",
        ),
    ],
)
def test_refusals(commtrace: Commtrace, arguments: tuple[str, ...], text: str) -> None:
    ended = commtrace("watch", "RUN.comm", *arguments)
    assert ended.code in (2, 3)
    assert ended.err.startswith(text)


def test_a_folder_that_is_missing_on_the_way_is_named(commtrace: Commtrace) -> None:
    ended = commtrace("watch", "results/RUN.comm")
    assert ended.code == 3
    assert f"  found: no folder {Path('results').absolute()}\n" in ended.err


def test_a_folder_that_never_comes_ends_the_watch(
    commtrace: Commtrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("commtrace_cli.watch._MOST_WAITED_S", 0.5)
    ended = commtrace("watch", "nope.comm")
    assert ended.code == 3
    assert ended.err == (
        "waiting for nope.comm\n"
        "error: cannot watch nope.comm\n"
        "  found: no such folder within 0 s\n"
        "  why: a run is recorded into a folder, such as RUN.comm\n"
        "  try: `mkdir nope.comm` to wait for a run that begins later, or another path\n"
    )


def test_the_port_may_follow_serve(
    commtrace: Commtrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []

    def served(folder: Path, port: int) -> None:
        ports.append(port)
        raise UsageError("enough")

    monkeypatch.setattr("commtrace_cli.watch._served", served)
    (tmp_path / "RUN.comm").mkdir()
    for options in (["--serve", "8790"], ["8790", "--serve"], ["--serve", "--port", "8790"]):
        assert commtrace("watch", "RUN.comm", *options).code == 2
    assert ports == [8790, 8790, 8790]
    ended = commtrace("watch", "RUN.comm", "8790")
    assert ended.err.startswith("error: unexpected argument 8790\n")


def test_a_finished_file_is_referred_to_summary(commtrace: Commtrace, run_json: Path) -> None:
    run_json.rename(run_json.with_name("done.json"))
    ended = commtrace("watch", run_json.with_name("done.json"))
    assert ended.code == 3
    assert "`commtrace summary " in ended.err


def test_a_file_that_is_being_recorded_is_watched_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run.json.spools").mkdir()
    assert folder_of(tmp_path / "run.json") == tmp_path / "run.json.spools"
    assert folder_of(tmp_path / "later.json") == tmp_path / "later.json.spools"
    assert folder_of(tmp_path / "RUN.comm") == tmp_path / "RUN.comm"


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("90", 90), ("2m", 120), ("1.5min", 90), ("500ms", 0.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text, "--on-hang") == seconds


@pytest.mark.parametrize("text", ["", "s", "0s", "-5s", "5 years", "nan", "inf", "1e400s", "٣s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(UsageError):
        seconds_of(text, "--on-hang")


def test_shares() -> None:
    assert share_of("20%", "x") == share_of("0.2", "x") == 0.2


def test_a_terminal_is_redrawn_and_keeps_the_last_state(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in run.start_all(2, **HERE):
        rank.close()
    monkeypatch.setattr("commtrace_cli.watch.is_terminal", lambda stream: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "argv", ["commtrace", "watch", str(run.folder)])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.rstrip().endswith("no call ended.")
