"""`commtrace demo`: it runs the checkout's example, which wheels include."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from commtrace.tracefile import read_trace
from commtrace_cli import demo
from tests.cli.conftest import ROOT, Commtrace, start

pytestmark = pytest.mark.usefixtures("preloaded")

DEADLINE_S = 120


def test_it_records_prints_and_draws_and_shows_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with start("demo", "--nproc", "2", "--sequence-parallel") as process:
        out, err = (text.decode() for text in process.communicate(timeout=DEADLINE_S))
    assert process.returncode == 0, err
    assert "sequence parallel" in out.splitlines()[0]
    assert "2 ranks, 10 steps" in out
    assert "reduce_scatter" in out
    shown = [re.sub(r"\S+/examples", "EXAMPLES", x) for x in err.splitlines() if x[:1] == "$"]
    assert shown == [
        "$ commtrace run --nproc 2 -o demo.json EXAMPLES/train_tp.py --steps 10 "
        "--sequence-parallel",
        "$ commtrace summary demo.json",
        "$ commtrace report demo.json -o demo.html",
    ]
    assert read_trace("demo.json").run["world_size"] == 2
    assert Path("demo.html").read_text().startswith("<!doctype html>")


def test_ranks_that_cannot_share_the_model_are_refused(commtrace: Commtrace) -> None:
    for nproc in ("3", "0", "8"):
        ended = commtrace("demo", "--nproc", nproc)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == (
            f"error: cannot run the demo on {nproc} ranks\n"
            "  why: the 4 heads of its model must divide evenly\n"
            "  try: --nproc 1, 2 or 4\n"
        )


@pytest.mark.parametrize("name", ["demo.json", "demo.html"])
def test_nothing_is_overwritten_and_nothing_done_before_that_is_known(
    commtrace: Commtrace, name: str
) -> None:
    Path(name).touch()
    ended = commtrace("demo")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith(f"error: cannot write {name}\n")


def test_a_wheel_has_the_program_where_it_is_looked_for() -> None:
    path = Path(demo.__file__).with_name("examples") / demo.NAME
    line = f'"examples/{demo.NAME}" = "{path.relative_to(ROOT / "cli")}"'
    assert line in (ROOT / "pyproject.toml").read_text()
    assert demo.program() == ROOT / "examples" / demo.NAME


def test_an_installation_without_the_program_is_reported_so(
    commtrace: Commtrace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(demo, "PLACES", (tmp_path / "a", tmp_path / "b"))
    ended = commtrace("demo")
    assert ended.code == 2
    assert f"found: no train_tp.py in {tmp_path}/a or {tmp_path}/b\n" in ended.err
