"""Settings of a project: each from its source, each mistake with its place."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

import commtrace
from commtrace.analyze.findings import RULES
from commtrace.errors import SettingsError, UsageError
from commtrace.settings import (
    DEFAULTS,
    FORMER_RULES,
    FORMER_THRESHOLDS,
    THRESHOLDS,
    Muted,
    settings_of,
    speeds_of_links,
)
from dtensor_core.testing import fake_world
from tests.commtrace.recorder.recorded import calls


def written(folder: Path, text: str) -> Path:
    folder.joinpath("pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def test_all_settings_are_read(tmp_path: Path) -> None:
    text = """
    [tool.commtrace]
    detail = "collective"
    libraries = ["a", "b.c"]
    own_packages = ["d"]
    [tool.commtrace.thresholds]
    small_bytes = 100
    straggler_share = 0.5
    [[tool.commtrace.muted]]
    rule = "stall"
    reason = "a checkpoint"
    module = "m.*"
    source = "train.py:*"
    """
    found = settings_of(written(tmp_path, text))
    assert found.path == tmp_path / "pyproject.toml"
    assert (found.detail, found.libraries, found.own_packages) == (
        "collective", ("a", "b.c"), ("d",),
    )  # fmt: skip
    names = ("small_bytes", "straggler_share", "straggler_ratio")
    expected = [100, 0.5, THRESHOLDS["straggler_ratio"].default]
    assert [found.threshold(name) for name in names] == expected
    assert found.muted == (Muted("stall", "a checkpoint", "m.*", "train.py:*"),)


def test_the_speed_of_a_link_is_that_of_the_group_of_its_axis_or_of_all(tmp_path: Path) -> None:
    text = '[tool.commtrace.link]\ntp = "450 GB/s"\n"0#2" = "8 Gbit/s"\n"*" = "400 Gbit/s"'
    found = settings_of(written(tmp_path, text))
    places = [("1", "tp"), ("0#2", "tp"), ("1", ""), ("2", "dp")]
    assert [found.link_bytes_per_s(*each) for each in places] == [450e9, 1e9, 50e9, 50e9]
    one = settings_of(written(tmp_path, '[tool.commtrace]\nlink = "50 GB/s"'))
    assert one.link_bytes_per_s("0", "tp") == 50e9
    assert math.isnan(DEFAULTS.link_bytes_per_s("0", "tp"))
    some = settings_of(written(tmp_path, '[tool.commtrace]\nlink = {tp = "50 GB/s"}'))
    assert math.isnan(some.link_bytes_per_s("0", "dp"))


@pytest.mark.parametrize("link", ["50", "0 GB/s", {"tp": "fast"}, {"*": "1000000000 TB/s"}])
def test_a_link_without_a_speed_is_refused(link: str | dict[str, str]) -> None:
    with pytest.raises(UsageError, match="cannot use the speed of a link") as error:
        speeds_of_links(link)
    assert 'a speed with its unit, such as "400 Gbit/s" or "50 GB/s"' in error.value.why


def test_the_nearest_file_above_counts(tmp_path: Path) -> None:
    written(tmp_path, '[tool.commtrace]\ndetail = "collective"')
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert settings_of(inner).detail == "collective"
    written(tmp_path / "a", "[project]\n")
    assert settings_of(inner) == DEFAULTS


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    assert settings_of(written(tmp_path, "[tool.commtrace]")).detail == ""
    assert settings_of(written(tmp_path, '[tool.commtrace]\ndetail = "op"')).detail == "op"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.commtrace]\ndetial = 'op'", "no setting 'detial' in [tool.commtrace]"),
        ("[tool.commtrace]\ndetial = 'op'", "try: detail"),
        (
            "[tool.commtrace]\ndetail = 'all'",
            "found: 'all'\n  why: it is one of 'op', 'collective'",
        ),
        ("[tool.commtrace]\nlink = '50'", "at: tool.commtrace.link\n  found: '50'\n  why: it is a"),
        ("[tool.commtrace]\nlink = 50", "found: 50\n  why: it is a speed with its unit, such as"),
        ("[tool.commtrace]\nlink = {tp = 5}", 'at: tool.commtrace.link."tp"\n  found: 5'),
        ("[tool.commtrace]\nlibraries = 'a'", "why: it is a list of packages, by name"),
        ("[tool.commtrace]\nlibraries = ['']", "why: it is a text that is not empty"),
        ("[tool]\ncommtrace = 3", "at: tool.commtrace\n  found: 3\n  why: it is a table"),
        (
            "[tool.commtrace.thresholds]\nlate = 1",
            "no setting 'late' in [tool.commtrace.thresholds",
        ),
        (
            "[tool.commtrace.thresholds]\nstall_factor = -1",
            "at: tool.commtrace.thresholds.stall_factor",
        ),
        (
            "[tool.commtrace.thresholds]\nlate_odds = 5\nstraggler_ratio = 5",
            "why: it is a former name of straggler_ratio, which is set too",
        ),
        ("[tool.commtrace.thresholds]\nstraggler_ratio = true", "it is a number from 0 to 1e+18"),
        ("[tool.commtrace.thresholds]\nstraggler_ratio = nan", "it is a number from 0 to 1e+18"),
        (
            f"[tool.commtrace.thresholds]\nstraggler_ratio = {'9' * 400}",
            "it is a number from 0 to 1e+18",
        ),
        (f"[tool.commtrace]\nlibraries = {'9' * 5000}", "cannot read the settings of"),
        (f"[tool.commtrace]\nlibraries = {'[' * 5000}", "found: RecursionError"),
        ("[tool.commtrace]\nmuted = 1", "why: it is a list of tables, [[tool."),
        ("[[tool.commtrace.muted]]\nrule = 'stall'", "found: no reason"),
        ("[[tool.commtrace.muted]]\nreason = 'x'", "found: no rule"),
        ("[[tool.commtrace.muted]]\nrule = 'a'\nreason = 'b'\nline = 3", "no setting 'line'"),
        ("[tool.commtrace", "cannot read the settings of"),
    ],
)
def test_a_mistake_is_reported_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as error:
        settings_of(written(tmp_path, text))
    assert message in str(error.value)
    assert error.value.exit_code == 2
    assert str(tmp_path / "pyproject.toml") in str(error.value)


@pytest.mark.parametrize(("former", "name"), FORMER_THRESHOLDS.items())
def test_former_names_of_thresholds_are_accepted(tmp_path: Path, former: str, name: str) -> None:
    settings = settings_of(written(tmp_path, f"[tool.commtrace.thresholds]\n{former} = 0.5"))
    assert settings.threshold(name) == 0.5 != THRESHOLDS[name].default


def test_a_file_that_is_no_text_is_reported(tmp_path: Path) -> None:
    tmp_path.joinpath("pyproject.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="UnicodeDecodeError"):
        settings_of(tmp_path)


def test_detail_is_what_a_recording_has_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written(tmp_path, '[tool.commtrace]\ndetail = "collective"'))
    with commtrace.record() as recording:
        torch.ones(1).add(1)
    assert recording.trace().run["detail"] == "collective"
    with commtrace.record(detail="op") as recording:
        torch.ones(1).add(1)
    assert recording.trace().run["detail"] == "op"


def reduced_by(name: str, file: str) -> ModuleType:
    """A module with a function that communicates, as if loaded from that file."""
    module = ModuleType(name)
    module.dist, module.torch = dist, torch  # type: ignore[attr-defined]
    text = "def call(function=None):\n    return function() if function else reduce()\n\n"
    text += "def reduce():\n    dist.all_reduce(torch.ones(1))\n"
    exec(compile(text, file, "exec"), vars(module))
    return module


def line_of_call(module: ModuleType, **columns: object) -> tuple[str, str]:
    with fake_world(2), commtrace.record(detail="collective", **columns) as recording:  # type: ignore[arg-type]
        module.call()
    (made,) = calls(recording)
    return made.source_file, made.source_function


@pytest.mark.parametrize(
    ("name", "file", "is_theirs"),
    [
        ("my_code", "/home/me/my_code.py", False),
        ("accelerate.optimizer", "/home/me/accelerate/optimizer.py", True),
        ("lightning.fabric", "/anywhere/lightning/fabric.py", True),
        ("unheard_of", "/venv/lib/python3.11/site-packages/unheard_of.py", True),
        ("unheard_of", "/usr/lib/python3/dist-packages/unheard_of.py", True),
        ("lightning_bolts", "/home/me/lightning_bolts.py", False),
    ],
)
def test_the_user_s_line_is_not_that_of_a_library_between(
    name: str, file: str, is_theirs: bool
) -> None:
    found = line_of_call(reduced_by(name, file))
    assert found == ((__file__, "line_of_call") if is_theirs else (file, "reduce"))


def test_more_libraries_are_named_by_the_recording_the_environment_and_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = reduced_by("trainer.loop", "/home/me/trainer/loop.py")
    assert line_of_call(ours)[1] == "reduce"
    assert line_of_call(ours, libraries=["trainer"])[1] == "line_of_call"
    assert line_of_call(ours)[1] == "reduce"
    monkeypatch.setenv("COMMTRACE_LIBRARIES", "trainer")
    assert line_of_call(ours)[1] == "line_of_call"
    monkeypatch.delenv("COMMTRACE_LIBRARIES")
    monkeypatch.chdir(written(tmp_path, '[tool.commtrace]\nlibraries = ["trainer"]'))
    assert line_of_call(ours)[1] == "line_of_call"


def test_an_installed_package_of_one_s_own_is_not_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "/venv/lib/python3.11/site-packages/my_model/layers.py"
    ours = reduced_by("my_model.layers", file)
    assert line_of_call(ours)[1] == "line_of_call"
    monkeypatch.chdir(written(tmp_path, '[tool.commtrace]\nown_packages = ["my_model"]'))
    assert line_of_call(ours) == (file, "reduce")


def test_where_all_is_installed_its_nearest_line_is_reported() -> None:
    import threading

    file = "/venv/lib/python3.11/site-packages/unheard_of.py"
    theirs = reduced_by("unheard_of", file)
    with fake_world(2), commtrace.record(detail="collective") as recording:
        thread = threading.Thread(target=theirs.reduce)
        thread.start()
        thread.join()
    (made,) = calls(recording)
    assert (made.source_file, made.source_function) == (file, "reduce")


def test_former_names_of_rules_are_those_of_rules_now(tmp_path: Path) -> None:
    assert set(FORMER_RULES.values()) <= {rule.name for rule in RULES}
    assert not set(FORMER_RULES) & {rule.name for rule in RULES}
    for former, current in FORMER_RULES.items():
        muted = f'[[tool.commtrace.muted]]\nrule = "{former}"\nreason = "intended"\n'
        assert settings_of(written(tmp_path, muted)).muted == (Muted(current, "intended"),)


def test_tomllib_is_there() -> None:
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    assert name in sys.modules


def test_the_document_lists_all_thresholds() -> None:
    text = (Path(__file__).parents[2] / "docs" / "recording.md").read_text(encoding="utf-8")
    for name, each in THRESHOLDS.items():
        assert f"| `{name}` | {each.default:,.15g} | {each.meaning} |" in text
