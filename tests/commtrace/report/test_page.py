from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from plotly.offline import get_plotlyjs

from commtrace.analyze import CATALOG, load, notices_of
from commtrace.analyze.consistency import consistency
from commtrace.analyze.divergence import divergences, first_verdict
from commtrace.figures.flame import flame
from commtrace.report import render_page, write_report
from commtrace.report.offline import content_policy
from commtrace.report.page import SCRIPTS
from commtrace.report.style import style_sheet
from commtrace.report.tables import TOPICS
from tests.commtrace.analyze.rows import call, group, rank_row, run_of, step
from tests.commtrace.analyze.training import training_trace
from tests.commtrace.report.reading import calls, data, elements, packed, policy, text

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='hacked()'>\"'`${x}\u2028"
SIZE_LIMIT_BYTES = 8_000_000


@pytest.fixture(scope="module")
def page() -> str:
    return render_page(load(training_trace()))


def scripts_of(page: str) -> list[str]:
    return re.findall(r"<script>(.*?)</script>", page, re.DOTALL)


def test_the_page_carries_the_figures_every_table_and_every_call(page: str) -> None:
    carried = data(page)
    frames = load(training_trace())
    assert carried["flame"]["data"][0]["ids"] == list(flame(frames).data[0].ids)
    assert carried["flame_values"]["wire_bytes"] == list(flame(frames).data[0].values)
    assert [table["name"] for table in carried["tables"]] == [
        name for topic in TOPICS for name, each in CATALOG.items() if each.topic == topic
    ]
    assert sorted(calls(page)["id"]) == sorted(frames.comm["id"])
    assert carried["timeline"]["ranks"] == [0, 1, 2, 3]
    assert carried["timeline"]["steps"]["step"] == [0, 1, 2]


def test_plotly_is_carried_once(page: str) -> None:
    assert packed(page, "plotly") == get_plotlyjs()
    assert page.count('id="packed-plotly"') == 1


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    for tag, attributes in elements(page):
        assert not attributes.get("src"), tag
        if tag in ("link", "a"):
            assert (attributes["href"] or "").startswith(("#", "data:,")), tag
    assert "url(" not in style_sheet()
    assert "@import" not in style_sheet()


def test_the_policy_names_each_script_and_allows_no_network(page: str) -> None:
    allowed = policy(page)
    assert allowed.startswith("default-src 'none'; ")
    assert "connect-src" not in allowed
    script_rule = next(rule for rule in allowed.split("; ") if rule.startswith("script-src"))
    assert "unsafe" not in script_rule
    (script,) = scripts_of(page)
    for source in (script, get_plotlyjs()):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in script_rule


def test_the_policy_stands_before_anything_that_it_governs(page: str) -> None:
    tags = [tag for tag, _ in elements(page)]
    assert tags.index("meta") < tags.index("style") < tags.index("script")
    head = page.index("Content-Security-Policy")
    assert head < page.index("<title>")


def test_a_script_that_is_not_ours_has_another_hash() -> None:
    assert content_policy("a") != content_policy("b")


def test_the_page_stays_under_its_size(page: str) -> None:
    assert len(page.encode()) < SIZE_LIMIT_BYTES


def test_the_same_run_makes_the_same_page(page: str) -> None:
    assert render_page(load(training_trace())) == page


def test_names_from_the_trace_are_text_wherever_they_appear() -> None:
    hostile = {
        name: HOSTILE
        for name in (
            "kind",
            "phase",
            "region",
            "module",
            "module_class",
            "op",
            "native_op",
            "group",
            "dtype",
            "reduce_op",
            "reason",
            "candidates",
            "source_file",
            "source_function",
        )
    }
    frames = run_of(
        [
            call(at=0, until=1, blocked_ns=1, seq=0, **hostile),
            call(rank=1, at=0, until=1, blocked_ns=1, seq=0, **hostile | {"kind": "x" + HOSTILE}),
        ],
        groups=[group(HOSTILE, mesh_axis=HOSTILE)],
        ranks=[rank_row(rank, host=HOSTILE, device=HOSTILE) for rank in range(2)],
        run={"command": HOSTILE, HOSTILE: HOSTILE, "torch": HOSTILE},
    )
    hostile_page, tame_page = render_page(frames), render_page(run_of([call(at=0, until=1)]))
    assert len(scripts_of(hostile_page)) == 1
    count = [tag for tag, _ in elements(hostile_page)].count
    for tag in ("script", "img", "style", "meta"):
        assert count(tag) == [tag for tag, _ in elements(tame_page)].count(tag), tag
    assert "window.hacked" in text(hostile_page)
    assert HOSTILE not in hostile_page
    kinds = next(t for t in data(hostile_page)["tables"] if t["name"] == "by_kind")["data"]["kind"]
    assert sorted(kinds["strings"]) == sorted([HOSTILE, "x" + HOSTILE])
    assert "1 fault" in text(hostile_page)


def test_our_own_script_cannot_end_itself() -> None:
    for name in SCRIPTS:
        source = (files("commtrace.report") / "templates" / name).read_text("utf-8")
        assert "</" not in source
        assert "<!--" not in source


def test_our_own_script_never_reads_text_as_html() -> None:
    for name in SCRIPTS:
        source = (files("commtrace.report") / "templates" / name).read_text("utf-8")
        for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert way not in source, (name, way)


@pytest.mark.parametrize(
    "frames",
    [
        run_of(),
        run_of(num_ranks=0, groups=[], run={"missing_ranks": [0, 1]}),
        load(training_trace(world_size=1, detail="collective", num_steps=0, late_rank=-1)),
        run_of([call()], run={"missing_ranks": [2, 3]}),
    ],
    ids=["no calls", "no ranks", "one rank", "missing ranks"],
)
def test_what_is_missing_is_said_in_a_sentence(frames) -> None:
    page = render_page(frames)
    said, tables = text(page), data(page)["tables"]
    notices = notices_of(frames)
    assert notices
    for notice in notices:
        limited = [each for each in tables if each["name"] in notice.limits]
        assert all(notice.text in table["notices"] for table in limited)
        assert notice.is_minor or " ".join(notice.text.split()) in said


def test_the_verdict_on_a_fault_comes_before_the_tiles_and_links_to_the_check(page: str) -> None:
    kinds = ("all_reduce", "all_reduce", "barrier")
    calls = [call(rank=rank, id=0, seq=0, at=0, kind=kind) for rank, kind in enumerate(kinds)]
    frames = run_of(calls, num_ranks=3, groups=[group(ranks=range(3))])
    verdict = first_verdict(consistency(frames), divergences(frames))
    made = render_page(frames)
    above, _, below = made.partition('<div class="tiles')
    assert verdict == "Rank 2 went on to barrier 0 of tp, others to all_reduce 0 of tp"
    assert verdict in text(above)
    assert _links_of_verdicts(above) == ["#check"]
    assert any(each.get("id") == "check" for _, each in elements(below))
    assert _links_of_verdicts(page) == []  # of a run without a fault


def _links_of_verdicts(page: str) -> list[str | None]:
    return [each["href"] for _, each in elements(page) if each.get("class") == "verdict"]


def test_without_calls_each_picture_says_so() -> None:
    page = render_page(run_of())
    assert text(page).count("so there is nothing to show here") == 2
    assert "flame-picture" not in page.replace(scripts_of(page)[0], "").replace(style_sheet(), "")


def test_a_page_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("the page before")

    def fail(*_: object) -> Path:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="the disk is full"):
            write_report(training_trace(), path)
    assert path.read_text() == "the page before"
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert write_report(training_trace(), path) == path
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_reporting_needs_no_torch() -> None:
    program = "import sys, commtrace.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_a_page_of_calls_that_were_not_timed_says_so_and_shows_no_0() -> None:
    rows = [
        call(rank=rank, id=n, seq=n, step=0, at=50 * n, module="m")
        for rank in range(2)
        for n in range(32)
    ]
    steps = [step(rank, 0, 0, 2000) for rank in range(2)]
    page = render_page(run_of(rows, steps=steps, run={"imported_from": "torch.profiler"}))
    said = text(page)
    assert said.count("not known for 64 of 64 calls") >= 3
    assert "Calls of unknown blocked time count for as long as they are in flight." in said
    assert "0 ns" not in said
    assert "0.0%" not in said
    made = {table["name"]: table for table in data(page)["tables"]}
    for name, column in (
        ("by_kind", "blocked_ns"),
        ("overlap", "exposed_ns"),
        ("by_rank", "wait_ns"),
    ):
        assert set(made[name]["data"][column]) == {None}, name
        assert "num_untimed" in made[name]["shown"]
    assert made["overlap"]["data"]["num_untimed"] == [32, 32]
    timed = render_page(load(training_trace()))
    assert "Calls of unknown blocked time" not in text(timed)
    for table in data(timed)["tables"]:
        assert "num_untimed" not in table["shown"], table["name"]
