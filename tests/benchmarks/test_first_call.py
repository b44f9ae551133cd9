"""A first call goes through few files, and the count sees every switch."""

from __future__ import annotations

import pytest

from benchmarks import first_call
from benchmarks.first_call import CALLS, Route, followed, paths
from benchmarks.kit import OURS, TORCHS

# The largest number of file switches of each case.
MOST = {"S(0) x S(0), one axis": 185, "S(0) x S(0), two axes": 390, "S(0) x R, one axis": 85}


@pytest.fixture(scope="module")
def routes() -> dict[str, dict[str, Route]]:
    return paths()


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_a_first_call_switches_files_rarely(routes, case) -> None:
    assert 0 < routes[case.name][OURS].num_switches <= MOST[case.name]


@pytest.mark.parametrize("case", CALLS, ids=lambda case: case.name)
def test_a_first_call_takes_fewer_calls_and_files_than_torch_s(routes, case) -> None:
    ours, torchs = routes[case.name][OURS], routes[case.name][TORCHS]
    assert ours.num_switches < torchs.num_switches
    assert ours.num_calls < torchs.num_calls


def test_calls_within_one_file_are_no_switches(tmp_path) -> None:
    space: dict[str, dict] = {"a": {}, "b": {}}
    sources = {"a": "def f(g):\n    h(); g(); h()\ndef h(): pass", "b": "def g(): pass"}
    for name, source in sources.items():
        exec(compile(source, str(tmp_path / f"{name}.py"), "exec"), space[name])
    route = followed(lambda: space["a"]["f"](space["b"]["g"]), tmp_path)
    assert route == Route(num_calls=4, num_switches=2)
    assert followed(lambda: space["b"]["g"](), tmp_path / "elsewhere") == Route(0, 0)


def test_the_command_prints_a_row_of_each_package(monkeypatch, capsys, routes) -> None:
    monkeypatch.setattr(first_call, "NUM_SHAPES", 2)
    monkeypatch.setattr(first_call, "paths", lambda: routes)
    first_call.main()
    printed = capsys.readouterr().out
    assert printed.count(OURS) == printed.count("torch ") == len(CALLS)
    assert "µs" in printed
