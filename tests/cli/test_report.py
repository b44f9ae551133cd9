"""`commtrace report`: the page it writes, and every trace that it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from commtrace.schema import FORMAT_VERSION
from commtrace_cli.selecting import link_of
from tests.cli.conftest import Commtrace
from tests.commtrace.report.reading import data


def test_it_writes_the_page_and_ends_by_naming_it(
    commtrace: Commtrace, run_json: Path, tmp_path: Path
) -> None:
    ended = commtrace("report", run_json)
    assert (ended.code, ended.out) == (0, "")
    page = tmp_path / "run.html"
    assert page.read_text().startswith("<!doctype html>")
    wrote, following = ended.err.splitlines()
    assert wrote.startswith("wrote run.html (")
    assert following == "next  python -m webbrowser run.html"
    # Only its owner may read it, and a later page of the run takes its place.
    assert page.stat().st_mode & 0o077 == 0
    page.write_text(page.read_text() + "<!-- earlier -->")
    assert commtrace("report", run_json, "--share").code == 0
    assert "<!-- earlier -->" not in page.read_text()
    assert page.stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize("is_there", [True, False])
def test_the_page_opens_in_a_browser_if_there_is_one(
    commtrace: Commtrace, run_json: Path, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or is_there)
    ended = commtrace("report", run_json, "--open")
    assert (ended.code, opened) == (0, [Path("run.html").resolve().as_uri()])
    assert ("found no browser" in ended.err) != is_there


def test_the_speed_of_a_link_is_the_line_in_the_picture(
    commtrace: Commtrace, run_json: Path
) -> None:
    def labels(*options: str) -> list[str]:
        assert commtrace("report", run_json, "--force", *options).code == 0
        page = data(Path("run.html").read_text(encoding="utf-8"))
        drawn = page["patterns"]["bandwidth"]["data"]
        return [each["name"] for each in drawn if each["meta"]["part"] == "reference"]

    assert all(label.startswith("best ") for label in labels())
    assert labels("--link", "400 Gbit/s") == ["link 50 GB/s"]
    of_tp = labels("--link", "1 Mbit/s", "--link", "tp=450 GB/s")
    assert "link of tp 450 GB/s" in of_tp or of_tp == ["link 450 GB/s"]


@pytest.mark.parametrize("link", ["400", "tp=fast", "", "tp="])
def test_a_link_without_a_speed_is_refused_before_any_work(
    commtrace: Commtrace, run_json: Path, link: str
) -> None:
    ended = commtrace("report", run_json, "--link", link)
    assert ended.code == 2
    assert ended.err == (
        "error: cannot use the speed of a link\n"
        f"  found: {link.rpartition('=')[2]!r}\n"
        '  why: it is a speed with its unit, such as "400 Gbit/s" or "50 GB/s"\n'
        "  try: 400 Gbit/s, or dp=400 Gbit/s for the groups of mesh axis dp\n"
    )
    assert not Path("run.html").exists()


def test_the_example_of_links_holds() -> None:
    assert link_of(["400 Gbit/s", "tp=450 GB/s"]) == {"*": "400 Gbit/s", "tp": "450 GB/s"}
    assert link_of([]) is link_of(None) is None


def test_a_folder_of_spools_is_a_trace_too(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("report", run_json.with_name("run.json.spools"), "-o", "spools.html")
    assert ended.code == 0
    assert Path("spools.html").stat().st_size > 10_000


def test_an_existing_page_is_kept_unless_forced(commtrace: Commtrace, run_json: Path) -> None:
    Path("run.html").write_text("mine")
    refused = commtrace("report", run_json)
    assert refused.code == 2
    assert refused.err == (
        "error: cannot write run.html\n"
        "  found: an existing file\n"
        "  why: existing files are only overwritten with --force\n"
        "  try: another -o, or --force to overwrite it\n"
    )
    assert Path("run.html").read_text() == "mine"
    assert commtrace("report", run_json, "--force").code == 0
    assert Path("run.html").read_text() != "mine"


def test_a_missing_folder_is_named_before_any_work(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("report", run_json, "-o", "results/page.html")
    assert ended.code == 2
    assert ended.err == (
        "error: cannot write results/page.html\n"
        "  found: no folder results\n"
        "  try: `mkdir -p results`, or another path\n"
    )


def truncated(path: Path, run_json: Path) -> None:
    path.write_bytes(run_json.read_bytes()[:900])


def newer(path: Path, run_json: Path) -> None:
    path.write_text(json.dumps({**json.loads(run_json.read_text()), "version": FORMAT_VERSION + 1}))


def text(path: Path, _run_json: Path) -> None:
    path.write_text("Dear diary,\ntoday I trained a model.\n")


def other_json(path: Path, _run_json: Path) -> None:
    path.write_text('{"traceEvents": []}')


def binary(path: Path, _run_json: Path) -> None:
    path.write_bytes(b"PK\x03\x04\xff\xfe")


def empty(path: Path, _run_json: Path) -> None:
    path.touch()


def missing(path: Path, _run_json: Path) -> None:
    assert not path.exists()


def folder(path: Path, _run_json: Path) -> None:
    path.mkdir()


EXPECTED = """  why: a trace is a JSON object that begins with {"format":"commtrace"
  try: another file; import files of torch's tools with `commtrace import`"""
BAD_TRACES = {
    text: f"""error: cannot read the trace TRACE
  at: its first line
  found: 'Dear diary,'
{EXPECTED}
""",
    other_json: f"""error: cannot read the trace TRACE
  found: JSON of another format
{EXPECTED}
""",
    binary: f"""error: cannot read the trace TRACE
  at: byte 4
  found: bytes that are not valid UTF-8
{EXPECTED}
""",
    truncated: """error: cannot read the trace TRACE
  at: character 900
  found: the end of the file
  why: the file was truncated or modified after it was written
  try: copy it again, or record the run again
""",
    newer: f"""error: cannot read the trace TRACE
  found: version {FORMAT_VERSION + 1} of the format
  why: this commtrace supports versions up to {FORMAT_VERSION}
  try: install the commtrace that recorded it, or a newer version
""",
    empty: """error: cannot read the trace TRACE
  found: an empty file
  why: the program ended before it wrote the trace, or the disk was full
  try: record the run again
""",
    missing: """error: cannot read the trace TRACE
  found: no such file
  why: a trace is a file, or the folder of spools of an interrupted run
  try: record one with `commtrace run --nproc 4 -o run.json SCRIPT`
""",
    folder: """error: cannot read the trace TRACE
  found: a folder without a *.spool file
  why: every recorded rank writes a spool
  try: record the program again, or pass another folder
""",
}


@pytest.mark.parametrize("make_bad", BAD_TRACES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("command", ["report", "summary"])
def test_a_bad_trace_gets_a_sentence(
    commtrace: Commtrace, tmp_path: Path, run_json: Path, command: str, make_bad
) -> None:
    make_bad(tmp_path / "bad.trace", run_json)
    ended = commtrace(command, "bad.trace")
    assert ended.err == BAD_TRACES[make_bad].replace("TRACE", "bad.trace")
    assert (ended.code, ended.out) == (3, "")
    assert not Path("run.html").exists()


@pytest.mark.parametrize("make_bad", [missing, truncated, folder], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "command", ["table by_kind", "findings", "check", "info", "dump comm", "explain longest"]
)
def test_every_command_says_the_same_of_it(
    commtrace: Commtrace, tmp_path: Path, run_json: Path, command: str, make_bad
) -> None:
    make_bad(tmp_path / "bad.trace", run_json)
    name, *rest = command.split()
    ended = commtrace(name, "bad.trace", *rest)
    assert ended.err == BAD_TRACES[make_bad].replace("TRACE", "bad.trace")
    assert (ended.code, ended.out) == (3, "")


def test_a_trace_without_events_is_not_drawn(commtrace: Commtrace, silent_json: Path) -> None:
    ended = commtrace("report", silent_json)
    assert ended.code == 3
    assert ended.err.startswith(f"error: nothing to show for the trace {silent_json}\n")
    assert not Path("run.html").exists()


def test_a_page_of_a_part_says_which_part(commtrace: Commtrace, run_json: Path) -> None:
    assert commtrace("report", run_json, "--steps", "1:2", "-o", "steps.html").code == 0
    assert "<b>steps 1 to 2</b>" in Path("steps.html").read_text()
    assert commtrace("report", run_json, "--window", "1ms:2ms", "-o", "window.html").code == 0
    assert "<b>1 ms to 2 ms</b>" in Path("window.html").read_text()


def test_a_part_that_is_not_there_is_refused(commtrace: Commtrace, run_json: Path) -> None:
    ended = commtrace("report", run_json, "--steps", "7")
    assert ended.code == 2
    assert ended.err == ("error: no step from 7 to 7\n  found: steps 0 to 2\n  try: other steps\n")
    ended = commtrace("report", run_json, "--window", "5s:6s")
    assert ended.code == 2
    assert ended.err.startswith("error: no communication from 5 s to 6 s\n")
    assert not Path("run.html").exists()
