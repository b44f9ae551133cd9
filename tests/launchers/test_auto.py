"""Processes that the variable COMMTRACE records, and processes that it does not."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from commtrace.launching import auto
from commtrace.tracefile import read_trace
from tests.launchers.programs import recorded, run

pytestmark = pytest.mark.usefixtures("preloaded")

RANKS = """
import multiprocessing, os, sys

def rank(number, folder):
    import torch, torch.distributed as dist
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=2
    )
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()

if __name__ == "__main__":
    method, folder = sys.argv[1:]
    if method == "fork":  # ranks that are spawned load torch themselves
        import torch.distributed
    context = multiprocessing.get_context(method)
    ranks = [context.Process(target=rank, args=(number, folder)) for number in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
    sys.exit(max(each.exitcode for each in ranks))
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize("how", [pytest.param("variable", marks=pytest.mark.cold_start), "command"])
def test_ranks_that_a_program_starts_are_recorded(tmp_path: Path, method: str, how: str) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    own = [sys.executable] if how == "variable" else recorded()
    variables = {"COMMTRACE": "RUN.comm"} if how == "variable" else {}
    ended = run([*own, "train.py", method, tmp_path], tmp_path, variables)
    assert (ended.code, ended.text) == (0, "")
    trace = read_trace(tmp_path / "RUN.comm")
    assert (trace.run["missing_ranks"], trace.run["torn_ranks"]) == ([], [])
    assert sorted(trace.tables["comm"]["rank"]) == [0, 1]
    assert set(trace.tables["comm"]["kind"]) == {"all_reduce"}


@pytest.mark.cold_start
def test_a_process_without_a_group_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tool.py").write_text("import torch.distributed\nprint('done')\n")
    ended = run([sys.executable, "tool.py"], tmp_path, {"COMMTRACE": "RUN.comm"})
    assert (ended.code, ended.text) == (0, "done\n")
    assert not (tmp_path / "RUN.comm").exists()


HELPER = """
import os, sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def save(number, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/saving", rank=0, world_size=1)
    dist.all_reduce(torch.ones(100))
    dist.destroy_process_group()

if __name__ == "__main__":
    folder = sys.argv[1]
    dist.init_process_group("gloo", init_method=f"file://{folder}/own", rank=0, world_size=1)
    dist.all_reduce(torch.ones(3))
    mp.start_processes(save, (folder,), nprocs=1, start_method="spawn")
    dist.destroy_process_group()
"""


def test_a_group_that_serves_a_rank_is_no_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HELPER)
    ended = run([sys.executable, "train.py", tmp_path], tmp_path, {"COMMTRACE": "RUN.comm"})
    assert (ended.code, ended.text) == (0, "")
    trace = read_trace(tmp_path / "RUN.comm")
    assert list(trace.tables["comm"]["input_shapes"]) == ["[3]"]
    assert "left_out_spools" not in trace.run


ALONE = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/own", rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()
print("trained")
"""


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"COMMTRACE": "run.json"}, "a folder whose name ends in .comm"),
        (
            {"COMMTRACE": "RUN.comm", "COMMTRACE_DETAIL": "much"},
            "a detail is one of op, collective",
        ),
        ({"COMMTRACE": "train.py/RUN.comm"}, "found: an existing file"),
    ],
)
def test_a_program_that_can_not_be_recorded_runs_all_the_same(
    tmp_path: Path, variables: dict[str, str], complaint: str
) -> None:
    (tmp_path / "train.py").write_text(ALONE)
    ended = run([sys.executable, "train.py", tmp_path], tmp_path, variables)
    assert ended.code == 0
    assert "commtrace: this process is not recorded" in ended.text
    assert complaint in ended.text
    assert "Traceback" not in ended.text
    assert ended.text.endswith("trained\n")


# The processes are forked, since torch is then loaded once.
IN_TURN = """
import os, sys
import torch, torch.distributed as dist
for number, word in enumerate(sys.argv[2:]):
    child = os.fork()
    if child == 0:
        name, _, value = word.partition("=")
        os.environ[name] = value
        meeting = f"file://{sys.argv[1]}/meeting-{number}"
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        dist.all_reduce(torch.ones(3))
        dist.destroy_process_group()
        print("trained with", word, flush=True)
        break
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit(1)
"""


def test_a_program_whose_options_mean_nothing_runs_all_the_same(tmp_path: Path) -> None:
    words = ["MAX_CALLS=-4", "EVERY=0", "RING=1 byte", "STACKS=no"]
    options = [f"COMMTRACE_{word}" for word in words]
    (tmp_path / "train.py").write_text(IN_TURN)
    command = [sys.executable, "train.py", tmp_path, *options]
    ended = run(command, tmp_path, {"COMMTRACE": "RUN.comm"})
    assert ended.code == 0
    assert "Traceback" not in ended.text
    parts = re.split(r"trained with (.+)\n", ended.text)
    assert (parts[1::2], parts[-1]) == (options, "")
    for option, said in zip(options, parts[::2], strict=False):
        assert said.count("commtrace: this process is not recorded") == 1
        assert option in said


def test_a_folder_that_vanishes_is_reported_and_harms_nobody(tmp_path: Path) -> None:
    vanish = "import shutil; shutil.rmtree('RUN.comm')\n"
    (tmp_path / "train.py").write_text(ALONE.replace("dist.destroy", vanish + "dist.destroy"))
    ended = run([*recorded(), "train.py", tmp_path], tmp_path)
    assert ended.code == 0
    assert "trained" in ended.text
    assert "commtrace: rank 0: the recording is lost: " in ended.text
    assert "RuntimeWarning" not in ended.text


@pytest.mark.cold_start
def test_a_start_of_python_loads_nothing_of_commtrace_before_torch(tmp_path: Path) -> None:
    code = "import sys; print(sorted(each for each in sys.modules if 'commtrace' in each))"
    ended = run([sys.executable, "-c", code], tmp_path, {"COMMTRACE": "RUN.comm"})
    assert ended.text == "['commtrace_auto']\n"


@pytest.mark.cold_start
def test_a_relative_folder_is_that_of_the_start_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    code = "import os; os.chdir('elsewhere'); import commtrace; print(os.environ['COMMTRACE'])"
    ended = run([sys.executable, "-c", code], tmp_path, {"COMMTRACE": "RUN.comm"})
    assert ended.text == f"{tmp_path}/RUN.comm\n"


@pytest.mark.cold_start
def test_a_relative_folder_in_a_removed_folder_is_refused_in_a_sentence(tmp_path: Path) -> None:
    code = f"cd {tmp_path}; mkdir gone; cd gone; rmdir ../gone; exec {sys.executable} -c 'print(1)'"
    ended = run(["bash", "-c", code], tmp_path, {"COMMTRACE": "RUN.comm"})
    assert ended.code == 0
    assert "found: COMMTRACE=RUN.comm, and the current folder is gone" in ended.text
    assert "Traceback" not in ended.text


CLOSES_ALL = """
import os, sys, time
import torch, torch.distributed as dist

def train():
    meeting = f"file://{sys.argv[1]}/meeting-{time.time_ns()}"
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    for _ in range(10):
        dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()

train()
os.closerange(3, 1024)
own = [open(f"{sys.argv[1]}/own-{number}", "w") for number in range(20)]
train()
for each in own:
    each.write("mine")
    each.close()
"""


def test_a_program_that_closes_all_descriptors_is_recorded_and_its_files_are_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "daemon.py").write_text(CLOSES_ALL)
    ended = run([sys.executable, "daemon.py", tmp_path], tmp_path, {"COMMTRACE": "RUN.comm"})
    assert (ended.code, ended.text) == (0, "")
    assert {path.read_text() for path in tmp_path.glob("own-*")} == {"mine"}
    trace = read_trace(tmp_path / "RUN.comm")
    assert (trace.num_rows("comm"), trace.run["torn_ranks"]) == (20, [])


def test_the_traceback_and_the_exit_code_are_the_programs(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def f():\n    raise ValueError('no data')\nf()\n")
    ended = run([*recorded(), "fails.py"], tmp_path)
    assert ended.code == 1
    assert "ValueError: no data" in ended.text
    assert "fails.py" in ended.text
    assert "commtrace" not in ended.text
    (tmp_path / "exits.py").write_text("raise SystemExit(7)")
    assert run([*recorded(), "exits.py"], tmp_path).code == 7


# Leaves its folder, and communicates on a thread and at exit, where it skips all other handlers.
TO_THE_END = """
import atexit, os, sys, threading, time
import torch, torch.distributed as dist

def last():
    dist.all_reduce(torch.ones(3))
    os._exit(5 if os.path.exists(__file__) else 6)

def use():
    time.sleep(0.2)  # the main thread has ended
    dist.all_reduce(torch.ones(3))

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/own", rank=0, world_size=1)
os.chdir("/")
dist.all_reduce(torch.ones(3))
atexit.register(last)
threading.Thread(target=use).start()
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (recorded(), 5),
        ([sys.executable, "-m", "commtrace_cli", "run", "-n", "1", "-o", "RUN.comm"], 1),
    ],
    ids=["record", "run"],
)
def test_a_program_is_recorded_until_it_ends_itself(
    tmp_path: Path, command: list[str], code: int
) -> None:
    (tmp_path / "train.py").write_text(TO_THE_END)
    ended = run([*command, "train.py", tmp_path], tmp_path)
    assert ended.code == code
    assert "found: exit code 5" in ended.text or not ended.text
    trace = read_trace(tmp_path / "RUN.comm")
    assert trace.num_rows("comm") == 3
    assert trace.run["torn_ranks"] == []


@pytest.mark.cold_start
def test_files_of_the_current_folder_are_no_modules_of_python(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "train.py").write_text("print('trained')\n")
    for name in ("json.py", "signal.py", "torch.py"):
        (tmp_path / name).write_text(f"raise ImportError('{name} is no module')\n")
    command = [*recorded(), "scripts/train.py"]
    # The command itself is a script elsewhere, as an installed one.
    start = f"import sys; del sys.path[0]; sys.argv = {command[2:]}; "
    start += "from commtrace_cli.main import main; main()"
    ended = run([sys.executable, "-c", start], tmp_path)
    assert (ended.code, ended.text) == (0, "trained\n")


def test_a_rank_that_becomes_another_program_does_not_serve_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serves = auto._serves_a_rank
    monkeypatch.setenv("COMMTRACE_RANK", f"0/2/{os.getpid()}")
    assert not serves(0, 2)
    monkeypatch.setenv("COMMTRACE_RANK", f"0/2/{os.getppid()}")
    assert (serves(0, 2), serves(0, 1), serves(1, 2)) == (True, True, False)


def test_the_traceback_of_an_interrupt_is_the_programs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def f():\n    raise KeyboardInterrupt\nf()\n")
    ended = run([*recorded(), "train.py"], tmp_path)
    assert ended == run([sys.executable, "train.py"], tmp_path)
    assert ended.code == -signal.SIGINT


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "train.py").write_text(
        "import sys\nfrom package import __name__ as parent\n"
        "print(__name__, parent, sys.argv[1:], sys.path[0])\n"
    )
    ended = run([*recorded(), "-m", "package.train", "--steps", "3"], tmp_path)
    assert ended.text == f"__main__ package ['--steps', '3'] {tmp_path}\n"
