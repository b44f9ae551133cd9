"""Programs run by `prepare_main`, compared with the same programs run by Python."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from commtrace.launching.main_program import prepare_main; prepare_main(sys.argv[1:])()"
)

# Prints what a program can know of itself, then uses it from another folder, a thread and at exit.
SHOW = """
import atexit, os, pickle, sys, threading, time

class Model: pass

def show():
    main = sys.modules["__main__"]
    print(main.__file__, main.__package__, main.__builtins__, getattr(main.__spec__, "name", None))
    print(type(main.__loader__), __name__, sys.argv, sys.path[:2], main.Model is Model)

def use():
    time.sleep(0.1)  # until the main thread has ended
    print(pickle.loads(pickle.dumps(Model)))

show()
atexit.register(use)
threading.Thread(target=use).start()
os.chdir("/")
with open(__file__, "rb") if not ".zip" in __file__ else open(os.devnull) as own:
    print(len(own.read()))
sys.exit(3)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    for name in ("__init__", "__main__", "train"):
        (package / f"{name}.py").write_text(SHOW if name != "__init__" else "")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    (tmp_path / "link.py").symlink_to(package / "train.py")
    return tmp_path


def run(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    ended = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, timeout=60, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("safe_path", ["", "1"])
@pytest.mark.parametrize(
    "words",
    [
        ("package/train.py", "--steps", "3"), ("link.py", "-m"), ("app.zip", "-o", "x"),
        ("package",), ("-m", "package.train", "-m"), ("-m", "package"), ("-m", "none"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_program_sees_the_same_as_under_python(
    folder: Path, words: tuple[str, ...], safe_path: str
) -> None:
    own = run(folder, "-c", RUN, *words, PYTHONSAFEPATH=safe_path)
    assert own == run(folder, *words, PYTHONSAFEPATH=safe_path)
    is_found = "none" not in words and not (safe_path and words[0] == "-m")
    assert is_found <= (own[0] == 3)


def test_compiled_code_is_run(folder: Path) -> None:
    compile_it = "import py_compile; py_compile.compile('package/train.py', 'train.pyc')"
    assert run(folder, "-c", compile_it)[0] == 0
    assert "train.pyc" in run(folder, "-c", RUN, "train.pyc")[1]


def test_future_imports_of_commtrace_are_none_of_the_program(folder: Path) -> None:
    (folder / "typed.py").write_text("def f(x: int): ...\nprint(f.__annotations__)\n")
    assert run(folder, "-c", RUN, "typed.py") == (0, "{'x': <class 'int'>}\n")
