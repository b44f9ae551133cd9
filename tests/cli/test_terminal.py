"""Messages on stderr: errors, refused outputs, progress, and the end of a command."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from commtrace.collective_table import KINDS
from commtrace.errors import TraceError, UsageError
from commtrace_cli.main import app
from commtrace_cli.terminal import (
    check_output,
    colour_of_kind,
    fail,
    finish,
    forget_odd_sizes,
    say,
    show_traceback,
    working,
)
from tests.commtrace.figures.test_theme import contrast


def test_an_error_is_its_text_on_stderr_without_wrapping(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    fail(TraceError("cannot read [bold]it[/]", found="a very long line " * 8))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"error: cannot read [bold]it[/]\n  found: {'a very long line ' * 8}\n"


def test_on_a_terminal_messages_are_wrapped_between_words_and_commands_are_in_one_piece(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    fail(
        TraceError(
            "cannot read the trace of this run", found="one", attempt="`merge a -o run.json`"
        )
    )
    say("note: a sentence, of which the end is `a command of several words` here", always=True)
    show_traceback(f"  {'code ' * 20}")
    assert re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().err).splitlines() == [
        "error: cannot read the trace of this run",
        "  found: one",
        "  try: `merge a -o run.json`",
        "note: a sentence, of which the end is",
        "  `a command of several words` here",
        f"  {'code ' * 20}",
    ]


def test_a_command_ends_with_its_files_and_the_next_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    written = tmp_path / "a b.json"
    written.write_bytes(bytes(1_500))
    finish([written], then=["commtrace", "summary", written])
    assert capsys.readouterr().err == (
        f"wrote {written} (1.5 kB)\nnext  commtrace summary '{written}'\n"
    )


@pytest.mark.parametrize("name", ["COLUMNS", "LINES"])
def test_a_size_that_no_terminal_has_is_forgotten(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in ("1", "80", "0080", "9999"):
        monkeypatch.setenv(name, size)
        forget_odd_sizes()
        assert os.environ[name] == size
    for size in ("", "0", "0000", "\u00b2", "\u0663", "99999", "9" * 5000, "-5", "wide"):
        monkeypatch.setenv(name, size)
        forget_odd_sizes()
        assert name not in os.environ


def test_progress_is_silent_where_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with working("thinking"):
        pass
    assert capsys.readouterr() == ("", "")


def test_progress_shows_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with working("thinking"):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert "thinking" in err


def test_a_new_file_in_an_existing_folder_is_a_fine_output(tmp_path: Path) -> None:
    check_output(tmp_path / "new.html", force=False)


def test_an_existing_output_is_refused_without_force(tmp_path: Path) -> None:
    existing = tmp_path / "report.html"
    existing.touch()
    with pytest.raises(UsageError) as refused:
        check_output(existing, force=False)
    assert str(refused.value) == (
        f"cannot write {existing}\n"
        "  found: an existing file\n"
        "  why: existing files are only overwritten with --force\n"
        "  try: another -o, or --force to overwrite it"
    )
    check_output(existing, force=True)


def test_what_a_command_reads_is_no_output_even_if_forced(tmp_path: Path) -> None:
    trace, other, spools = tmp_path / "run.json", tmp_path / "link.json", tmp_path / "spools"
    trace.touch()
    other.symlink_to(trace)
    spools.mkdir()
    (spools / "rank-00000.spool").touch()
    for output, source in (
        (trace, trace),
        (other, trace),
        (spools / "rank-00000.spool", spools),
    ):
        with pytest.raises(UsageError) as refused:
            check_output(output, force=True, read=[tmp_path / "missing", source])
        assert str(refused.value) == (
            f"cannot write {output}\n"
            "  found: a file that this command reads\n"
            "  why: no command overwrites its own input\n"
            "  try: another -o"
        )
    check_output(spools / "new.json", force=True, read=[spools])
    check_output(trace, force=True, read=[spools])


@pytest.mark.parametrize(
    "command",
    [
        ("report", "run.json"),
        ("flame", "run.json"),
        ("timeline", "run.json"),
        ("export", "run.json", "--to", "perfetto"),
        ("diff", "run.json", "run.json"),
        ("import", "run.json"),
        ("merge", "."),
    ],
)
def test_no_command_overwrites_its_own_input(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.json").write_text("a recording")
    with pytest.raises(UsageError, match="no command overwrites its own input"):
        app([*command, "-o", "run.json", "--force"], standalone_mode=False)
    assert Path("run.json").read_text() == "a recording"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        check_output(tmp_path / "my results" / "report.html", force=True)
    assert str(refused.value) == (
        f"cannot write {tmp_path}/my results/report.html\n"
        f"  found: no folder {tmp_path}/my results\n"
        f"  try: `mkdir -p '{tmp_path}/my results'`, or another path"
    )


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_is_no_output(tmp_path: Path, force: bool) -> None:
    with pytest.raises(UsageError) as refused:
        check_output(tmp_path, force=force)
    assert str(refused.value) == (
        f"cannot write {tmp_path}\n"
        "  found: an existing folder\n"
        f"  try: a file in it: {tmp_path}/FILE"
    )


@pytest.mark.parametrize("kind", [*KINDS, "made_up"])
def test_a_kind_s_colour_is_readable_on_dark_and_on_light_terminals(kind: str) -> None:
    colour = colour_of_kind(kind)
    assert contrast(colour, "#000000") >= 2.7
    assert contrast(colour, "#ffffff") >= 2.7
