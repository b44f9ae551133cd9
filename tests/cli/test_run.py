"""`commtrace run`: ranks that succeed, ranks that fail in every way, and refusals."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from commtrace.errors import OutputError
from commtrace.tracefile import Trace, read_trace
from commtrace.tracefile.dataset import open_dataset
from commtrace_cli.preparing import BYTES_OF_LARGE_RUN, is_large, prepared_if_possible
from tests.cli.conftest import Commtrace, Ended
from tests.commtrace.launching.launched import free_ports
from tests.commtrace.synthetic import write_synthetic_spools

pytestmark = pytest.mark.usefixtures("preloaded")

DEADLINE_S = 120
ROOT = Path(__file__).parents[2]

GREETING = """\
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
print(f"rank {rank} got {sys.argv[1:]}")
dist.all_reduce(torch.ones(8))
"""
# Ranks wait before they fail, longer than a recording buffers events: the launcher kills the others
# at once.
LATER = "import os, time; time.sleep(1.5)\n"
FAILURES = {
    "raises": LATER + 'if rank == 1:\n    raise ValueError("no more data")\ndist.barrier()\n',
    "exits": LATER + "if rank == 1:\n    sys.exit(3)\ndist.barrier()\n",
    "is killed": LATER + "if rank == 1:\n    os.kill(os.getpid(), 9)\ndist.barrier()\n",
}


def environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "cli"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    """Start `commtrace ARGS...` in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "commtrace_cli", *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*arguments: str, folder: Path) -> Ended:
    """Run `commtrace run ARGS...` in a process of its own, because it handles signals."""
    process = start("run", *arguments, folder=folder)
    try:
        out, err = process.communicate(timeout=DEADLINE_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return Ended(process.returncode, out, err)


def kinds(trace: Trace) -> Counter[tuple[int, str]]:
    """Number of calls of each rank and kind."""
    comm = trace.tables["comm"]
    return Counter(zip(comm["rank"], comm["kind"], strict=True))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ended, Path]:
    """A run of two ranks, and the folder that it was started in."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "train.py").write_text(GREETING)
    ended = run("-n", "2", "-o", "out.json", "train.py", "--steps", "3", "-o", "x", folder=folder)
    assert ended.code == 0, ended.err
    return ended, folder


def test_ranks_are_recorded_and_their_output_passes_through(recorded: tuple[Ended, Path]) -> None:
    ended, folder = recorded
    assert sorted(ended.out.splitlines()) == [
        f"rank {rank} got ['--steps', '3', '-o', 'x']" for rank in range(2)
    ]
    assert re.fullmatch(
        r"wrote out\.json \(\S+ \w+\)\nnext  commtrace summary out\.json\n", ended.err
    )
    trace = read_trace(folder / "out.json")
    assert kinds(trace) == {(0, "all_reduce"): 1, (1, "all_reduce"): 1}
    assert trace.run["command"] == "train.py --steps 3 -o x"
    assert trace.run["detail"] == "op"
    assert sorted(path.name for path in folder.iterdir()) == ["out.json", "train.py"]


def test_a_dataset_is_prepared_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GREETING)
    ended = run("-n", "2", "-o", "RUN.comm", "--dataset", "train.py", folder=tmp_path)
    assert ended.code == 0, ended.err
    assert re.search(r"dataset: \S+ \w+, 2 calls of 2 ranks", ended.err)
    assert ended.err.endswith("next  commtrace summary RUN.comm\n")
    dataset = open_dataset(tmp_path / "RUN.comm")
    assert kinds(dataset.trace()) == {(0, "all_reduce"): 1, (1, "all_reduce"): 1}


@pytest.mark.parametrize("size", [BYTES_OF_LARGE_RUN, BYTES_OF_LARGE_RUN - 1])
def test_a_run_of_millions_of_calls_is_large(tmp_path: Path, size: int) -> None:
    for rank, own in enumerate((size // 2, size - size // 2)):
        with (tmp_path / f"rank-{rank:05d}.spool").open("wb") as file:
            file.truncate(own)
    assert is_large(tmp_path) == (size >= BYTES_OF_LARGE_RUN)


def test_a_dataset_that_nobody_asked_for_and_has_no_space_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(folder: Path, **options: object) -> None:
        raise OutputError("cannot write x", found="no space left on the device")

    folder = write_synthetic_spools(tmp_path / "RUN.comm")
    assert prepared_if_possible(folder) is None
    monkeypatch.setattr("commtrace_cli.preparing.BYTES_OF_LARGE_RUN", 1)
    dataset = prepared_if_possible(folder)
    assert dataset is not None
    assert dataset.num_rows("comm") == 120
    monkeypatch.setattr("commtrace.tracefile.dataset.prepare_dataset", full)
    assert prepared_if_possible(folder) is None
    said = capsys.readouterr().err
    assert "note: no dataset was prepared: no space left on the device\n" in said


@pytest.mark.parametrize(
    ("arguments", "found"), [(("-o", "run.json"), "a file"), (("--nnodes", "2"), "several nodes")]
)
def test_a_dataset_needs_the_folder_of_all_ranks(
    tmp_path: Path, arguments: tuple[str, ...], found: str
) -> None:
    (tmp_path / "train.py").write_text(GREETING)
    ended = run("-n", "2", "--dataset", "-o", "RUN.comm", *arguments, "train.py", folder=tmp_path)
    assert ended.code == 2
    assert found in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(("options", "detail"), [((), "collective"), (("--detail", "op"), "op")])
def test_the_project_s_detail_is_that_of_a_run_unless_the_command_names_one(
    tmp_path: Path, options: tuple[str, ...], detail: str
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.commtrace]\ndetail = "collective"\n')
    (tmp_path / "train.py").write_text(GREETING)
    ended = run("-n", "1", *options, "train.py", folder=tmp_path)
    assert ended.code == 0, ended.err
    trace = read_trace(tmp_path / "run.json")
    assert (trace.run["detail"], trace.num_rows("comm")) == (detail, 1)


TRAINER = """\
import torch
import torch.distributed as dist

def fit():
    dist.all_reduce(torch.ones(8))
"""


@pytest.mark.parametrize(
    ("options", "variable", "place"),
    [
        ((), "", ("loop.py", 5)),
        (("--library", "trainer"), "", ("train.py", 4)),
        (("--library", "others"), "trainer", ("train.py", 4)),
    ],
)
def test_calls_of_a_library_that_the_command_names_are_of_the_line_that_calls_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    variable: str,
    place: tuple[str, int],
) -> None:
    monkeypatch.setenv("COMMTRACE_LIBRARIES", variable)
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "loop.py").write_text(TRAINER)
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist\nfrom trainer.loop import fit\n"
        'dist.init_process_group("gloo")\nfit()\n'
    )
    ended = run("-n", "1", *options, "train.py", folder=tmp_path)
    assert ended.code == 0, ended.err
    comm = read_trace(tmp_path / "run.json").tables["comm"]
    assert [(Path(file).name, line) for file, line in zip(
        comm["source_file"], comm["source_line"], strict=True
    )] == [place]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            "raises",
            "Traceback (most recent call last):\n"
            '  File "{folder}/train.py", line 11, in <module>\n'
            '    raise ValueError("no more data")\n'
            "ValueError: no more data\n"
            "error: train.py failed on rank 1 of 2\n"
            "  found: ValueError: no more data\n",
        ),
        ("exits", "error: train.py failed on rank 1 of 2\n  found: exit code 3\n"),
        (
            "is killed",
            "error: train.py failed on rank 1 of 2\n"
            "  found: killed by signal 9 (SIGKILL), possibly for lack of memory\n",
        ),
    ],
)
def test_of_a_rank_that_fails_the_trace_is_kept(tmp_path: Path, how: str, message: str) -> None:
    (tmp_path / "train.py").write_text(GREETING + FAILURES[how])
    ended = run("-n", "2", "--detail", "collective", "train.py", folder=tmp_path)
    assert ended.code == 1
    message = message.replace("{folder}", str(tmp_path))
    assert ended.err.startswith(message)
    assert re.search(r"\nwrote run\.json \(.*\)\nnext  commtrace check run\.json\n\Z", ended.err)
    trace = read_trace(tmp_path / "run.json")
    assert trace.run["world_size"] == 2
    assert trace.run["detail"] == "collective"
    assert kinds(trace)[0, "all_reduce"] == kinds(trace)[1, "all_reduce"] == 1


WAITING = (
    GREETING
    + """
dist.barrier()
import time
time.sleep(1)  # longer than a recording keeps what it has to itself
if rank == 0:
    print("all here", flush=True)
while True:
    time.sleep(0.1)
"""
)


def in_terminal(
    *arguments: str, folder: Path, kill_by: signal.Signals, at: Sequence[str] = ("all here",)
) -> Ended:
    """Run `commtrace run ARGS...` on a terminal, and send a signal at each of some words."""
    ours, its = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "commtrace_cli", "run", *arguments],
        cwd=folder,
        env=environment() | {"TERM": "xterm"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    shown, words, until = "", list(at), time.monotonic() + DEADLINE_S
    try:
        while time.monotonic() < until:
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                shown += os.read(ours, 4096).decode(errors="replace")
            except OSError:  # the other end is closed
                break
            if words and words[0] in shown:
                del words[0]
                if kill_by is signal.SIGINT:  # as a terminal does: to all in the foreground
                    os.killpg(process.pid, kill_by)
                else:
                    process.send_signal(kill_by)
        return Ended(process.wait(timeout=10), re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown), "")
    except subprocess.TimeoutExpired:
        pytest.fail(f"it still runs; not shown: {words}; shown: {shown!r}")
    finally:
        os.close(ours)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_an_interrupted_run_keeps_its_trace(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    ended = in_terminal("-n", "2", "train.py", folder=tmp_path, kill_by=signal.SIGINT)
    assert "recording train.py on 2 ranks\r\n" in ended.out
    assert (
        "error: train.py was stopped\r\n  found: interrupted by signal 2 (SIGINT)\r\n" in ended.out
    )
    assert "Traceback" not in ended.out
    assert "death signal" not in ended.out
    assert ended.code == 128 + signal.SIGINT
    found = kinds(read_trace(tmp_path / "run.json"))
    assert [found[rank, "all_reduce"] for rank in range(2)] == [1, 1]


HANGING = """\
import signal, sys, time
import torch
import torch.distributed as dist

signal.signal(signal.SIGINT, signal.SIG_IGN)
dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.ones(8)
dist.all_reduce(x)
if rank == 0:
    print("all here", flush=True)
if rank != 1:
    dist.all_reduce(x)
time.sleep(600)
"""
MISSING = (
    r"Rank 1 has been in `time\.sleep\(600\)` for \S+ m?s at train\.py:14; "
    r"others wait at train\.py:13\n"
)


def test_a_second_ctrl_c_ends_a_hang_at_once_and_the_recording_and_its_fault_are_there(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(HANGING)
    told = "interrupted: waiting up to 10 s for ranks 0-2 to end; Ctrl-C again kills them"
    ended = in_terminal(
        "-n", "3", "train.py", folder=tmp_path, kill_by=signal.SIGINT, at=("all here", told)
    )
    assert ended.code == 128 + signal.SIGINT
    assert told in ended.out
    assert "error: train.py was stopped\r\n  found: interrupted by signal 2" in ended.out
    assert ended.out.endswith("next  commtrace check run.json\r\n")
    found = kinds(read_trace(tmp_path / "run.json"))
    assert [found[rank, "all_reduce"] for rank in range(3)] == [2, 1, 2]


def test_of_a_run_that_hung_the_first_fault_is_printed_and_the_next_command_is_check(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(HANGING)
    ended = run("-n", "3", "--timeout", "4", "train.py", folder=tmp_path)
    assert ended.code == 1
    head, _, rest = ended.err.partition("error: train.py on 3 ranks did not end within 4 s\n")
    assert 'train.py", line 14, in <module>\n    time.sleep(600)\n' in head
    assert re.match(rf"  found: ranks 0-2 still running\n{MISSING}", rest)
    assert re.search(r"\nwrote run\.json \(.*\)\nnext  commtrace check run\.json\n\Z", rest)


def test_of_a_run_that_did_not_begin_to_record_this_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(60)\n")
    ended = run("-n", "1", "--timeout", "0.1", "-m", "train", folder=tmp_path)
    assert ended.code == 1
    assert "error: train on 1 rank did not end within 0.1 s" in ended.err
    assert ("wrote" in ended.err) != ("note: nothing was recorded" in ended.err)


def permissions(*paths: Path) -> set[int]:
    return {stat.S_IMODE(path.stat().st_mode) for path in paths}


def test_what_is_written_is_its_owners_alone(recorded: tuple[Ended, Path]) -> None:
    _, folder = recorded
    assert permissions(folder / "out.json") == {0o600}


# Rank 1 leaves once rank 0 is connected to it, in a way of C that Python does not notice.
LEAVING = """\
import ctypes, pathlib, time
import torch.distributed as dist
dist.init_process_group("gloo")
connected = [pathlib.Path(f"connected{rank}") for rank in range(2)]
connected[dist.get_rank()].touch()
while not all(each.exists() for each in connected):
    time.sleep(0.01)
if dist.get_rank() == 1:
    ctypes.CDLL(None)._exit(0)
"""


def test_a_rank_that_does_not_close_its_recording_may_have_communicated(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAVING)
    ended = run("-n", "2", "train.py", folder=tmp_path)
    assert "note: no communication of train.py was recorded, but not every rank closed" in ended.err
    assert "communicated nothing" not in ended.err


NOTHING = """\
note: train.py communicated nothing
  found: {found}
"""


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("print('done')\n", "no process group on any of 2 ranks"),
        (
            # A rank that ends at once may close a connection that the other one still makes.
            "import time\nimport torch.distributed as dist\n"
            "dist.init_process_group('gloo')\ntime.sleep(1)\n",
            "a process group in 2 processes, without a call on it",
        ),
        (
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'pass'])\n",
            f"programs that it started, which are not recorded: {sys.executable} -c pass\n"
            "  try: record the program with the ranks: commtrace run --nproc N PROGRAM",
        ),
    ],
)
def test_a_program_that_communicated_nothing_is_reported_with_a_command_that_works(
    commtrace: Commtrace, tmp_path: Path, script: str, found: str
) -> None:
    (tmp_path / "train.py").write_text(script)
    ended = run("-n", "2", "train.py", folder=tmp_path)
    assert ended.code == 0
    message, _, end = ended.err.partition("wrote ")
    assert message == NOTHING.format(found=found)
    (command,) = re.findall(r"^next  commtrace (.*)$", end, re.MULTILINE)
    assert command == "info run.json"
    assert commtrace(*command.split()).code == 0


STARTING = """\
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank):
    os.environ["MASTER_PORT"] = sys.argv[2]
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(8))
    dist.destroy_process_group()

if __name__ == "__main__":
    for _ in range(int(sys.argv[1])):
        # Forked, since such ranks need not load torch.
        mp.start_processes(work, nprocs=2, start_method="fork")
"""


@pytest.fixture
def port() -> str:
    return str(free_ports(1))


def test_ranks_that_a_script_starts_are_recorded_and_earlier_ones_kept(
    tmp_path: Path, port: str
) -> None:
    (tmp_path / "train.py").write_text(STARTING)
    ended = run("-n", "1", "train.py", "2", port, folder=tmp_path)
    assert ended.code == 0
    assert ended.err.startswith(
        "note: 2 spools of ranks that train.py started earlier are not included, "
        "and stay in run.json.spools\nwrote run.json"
    )
    assert kinds(read_trace(tmp_path / "run.json")) == {(0, "all_reduce"): 1, (1, "all_reduce"): 1}
    earlier = read_trace(tmp_path / "run.json.spools")
    assert kinds(earlier) == {(0, "all_reduce"): 1, (1, "all_reduce"): 1}


def test_ranks_that_each_process_would_start_are_refused_and_nothing_is_left(
    tmp_path: Path, port: str
) -> None:
    (tmp_path / "train.py").write_text(STARTING)
    ended = run("-n", "2", "train.py", "1", port, folder=tmp_path)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert ended.err.endswith(  # after torch's own messages about the processes that it kills
        "error: cannot run train.py on 2 ranks\n"
        "  found: a process group of processes that the script starts itself\n"
        "  why: each of the 2 processes would start further ranks\n"
        "  try: --nproc 1, which records the ranks that the script starts\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_options_behind_the_script_are_the_scripts_and_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(GREETING)
    arguments = ("--detail", "collective", "--stacks", "-o", "x", "--output=y", "-n", "5")
    ended = run("-n", "1", "-o", "out.json", "train.py", *arguments, folder=tmp_path)
    assert (ended.code, ended.out) == (0, f"rank 0 got {list(arguments)}\n")
    assert [line for line in ended.err.splitlines() if line.startswith("note")] == [
        f"note: {name} is passed to train.py; put it before train.py for `commtrace run`"
        for name in ("--detail", "--stacks")  # the others are also given before it
    ]
    assert read_trace(tmp_path / "out.json").run["detail"] == "op"


@pytest.mark.skipif(sys.platform != "linux", reason="ranks notice their parent's end later there")
def test_a_killed_run_leaves_spools_that_are_a_trace(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITING)
    ended = in_terminal("-n", "2", "train.py", folder=tmp_path, kill_by=signal.SIGKILL)
    assert ended.code == -signal.SIGKILL
    assert not (tmp_path / "run.json").exists()
    found = kinds(read_trace(tmp_path / "run.json.spools"))
    assert [found[rank, "all_reduce"] for rank in range(2)] == [1, 1]
    assert permissions(tmp_path / "run.json.spools") == {0o700}
    assert permissions(*(tmp_path / "run.json.spools").glob("*.*")) == {0o600}
    assert permissions(tmp_path / "run.json.spools" / "launch") == {0o700}
    assert permissions(*(tmp_path / "run.json.spools" / "launch").iterdir()) == {0o600}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("train.py", "--lr", "1", "--nproc", "4"),
            "error: cannot run train.py\n"
            "  found: --nproc after train.py\n"
            "  why: arguments after SCRIPT belong to the script\n"
            "  try: commtrace run --nproc N train.py\n",
        ),
        (
            ("--nproc", "0", "train.py"),
            "error: cannot run train.py on 0 ranks\n"
            "  why: a run needs at least one rank\n"
            "  try: --nproc 1 or more\n",
        ),
        (
            ("--nproc", "2", "trian.py"),
            "error: cannot run trian.py\n"
            "  found: no such file\n"
            "  why: it must be a Python script\n",
        ),
        (
            ("--nproc", "2", "."),
            "error: cannot run .\n  found: a folder without __main__.py\n"
            "  why: it must be a Python script\n",
        ),
        (
            ("--nproc", "2", "-o", "old.json", "train.py"),
            "error: cannot write old.json\n"
            "  found: an existing file\n"
            "  why: existing files are only overwritten with --force\n"
            "  try: another -o, or --force to overwrite it\n",
        ),
        (
            ("--nproc", "2", "-o", "results/run.json", "train.py"),
            "error: cannot write results/run.json\n"
            "  found: no folder results\n"
            "  try: `mkdir -p results`, or another path\n",
        ),
        (
            ("--nproc", "2", "-o", "cut.json", "train.py"),
            "error: cannot record into cut.json.spools\n"
            "  found: spools of an interrupted run\n"
            "  try: `commtrace summary cut.json.spools` to inspect it, or --force to overwrite "
            "it\n",
        ),
    ],
)
def test_what_cannot_be_run_gets_a_sentence(
    commtrace: Commtrace, arguments: tuple[str, ...], message: str
) -> None:
    for name in ("train.py", "old.json"):
        Path(name).touch()
    Path("cut.json.spools").mkdir()
    before = set(Path.cwd().iterdir())
    assert commtrace("run", *arguments) == Ended(2, "", message)
    assert set(Path.cwd().iterdir()) == before


ON_NODES = "error: cannot run train.py on these nodes\n  found: "


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--nnodes two", ON_NODES + "--nnodes two\n  why: it is a number of nodes, or the least"),
        ("--nnodes 0", ON_NODES + "--nnodes 0\n"),
        ("--nnodes 4:2", ON_NODES + "--nnodes 4:2\n"),
        ("--nnodes 2 --node-rank 2", ON_NODES + "--node-rank 2\n  why: nodes are numbered from 0"),
        ("--rdzv-endpoint a:b", ON_NODES + "--rdzv-endpoint a:b\n  why: it is a host"),
        ("--rdzv-endpoint a:70000", ON_NODES + "--rdzv-endpoint a:70000\n"),
        (
            "--nnodes 2 --force",
            "error: cannot overwrite RUN.comm\n  found: --force with --nnodes\n",
        ),
        ("--nnodes 2 --timeout 5", "error: cannot limit the time of train.py\n"),
        ("--nnodes 2 -n 0", "error: cannot run train.py on 0 ranks\n"),
        ("--nnodes 2 none.py", "error: cannot run none.py\n  found: no such file\n"),
    ],
)
def test_what_cannot_be_run_on_nodes_gets_a_sentence(
    commtrace: Commtrace, monkeypatch: pytest.MonkeyPatch, options: str, message: str
) -> None:
    Path("train.py").touch()
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("torchrun was started"))
    ended = commtrace("run", "-n", "2", "-o", "RUN.comm", *options.split(), "train.py")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(message)


def test_options_of_nodes_are_torchruns(
    commtrace: Commtrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("train.py").touch()
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execve", lambda _, words, __: started.append(words))
    options = "--nnodes 1:4 --node-rank 3 --rdzv-endpoint [::1]:29400"
    commtrace("run", "-n", "2", "-o", "RUN.comm", *options.split(), "train.py")
    own = ["--nproc-per-node", "2", "--no-python", sys.executable, "-u", "-m"]
    assert started[0][3:] == [
        *options.split(),
        *own,
        "commtrace.launching.record_program",
        "train.py",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train.py",), "Missing option '--nproc'"),
        (("--nproc", "many", "train.py"), "Invalid value for '--nproc'"),
        (("--nproc", "2"), "Missing argument 'SCRIPT'"),
        (("--nproc", "2", "--detail", "all", "train.py"), "Invalid value for '--detail'"),
    ],
)
def test_wrong_usage_names_the_option(
    commtrace: Commtrace, arguments: tuple[str, ...], message: str
) -> None:
    ended = commtrace("run", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert message in ended.err
    assert "Traceback" not in ended.err


def test_a_recording_that_a_full_disk_cuts_short_ends_with_code_3(
    tmp_path: Path, disk_of: Callable[[str], Path]
) -> None:
    (tmp_path / "train.py").write_text(GREETING + "for _ in range(6000):\n    dist.barrier()\n")
    output = disk_of("24k") / "RUN.comm"
    ended = run("-n", "1", "-o", str(output), "train.py", folder=tmp_path)
    assert ended.code == 3
    assert "is not complete, though the program succeeded" in ended.err
    assert "found: rank 0: no space left on device" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("output", ["RUN.comm", "run.json"])
def test_a_recording_whose_folder_is_removed_ends_with_code_3(tmp_path: Path, output: str) -> None:
    vanish = f"import glob, shutil\nshutil.rmtree(glob.glob('{output}*')[0])\n"
    (tmp_path / "train.py").write_text(GREETING + vanish)
    ended = run("-n", "1", "-o", output, "train.py", folder=tmp_path)
    assert ended.code == 3
    assert "was removed meanwhile" in ended.err
    assert "RuntimeWarning" not in ended.err
    assert "Traceback" not in ended.err
