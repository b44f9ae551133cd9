"""The call that would have set the key which a rank waits for."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from commtrace.analyze.divergence.program_text import ProgramText
from commtrace.analyze.divergence.storing import chain_to_setter
from commtrace.event import HostEventRow
from tests.commtrace.analyze.consistency.runs import Program
from tests.commtrace.analyze.rows import START_NS, run_of

PROGRAM = dedent("""
    class Corpus:
        def prepare(self, split):
            if self.exists():
                return
            self.store.set(f"corpus/{split}", "ready")

        def load(self, split):
            if self.rank == 0:
                self.prepare(split)
            else:
                self.store.wait([f"corpus/{split}"])
            return torch.load(self.path())

    def main():
        corpus.load("train")
        corpus.load("valid")

    main()
""")
WAITS = "train.py:19 <module>\ntrain.py:17 main\ntrain.py:12 load"


def found(text: str, wait: str = "wait corpus/valid", **columns: Any) -> list[tuple[int, str]]:
    known = {"rank": 1, "kind": "store", "at_ns": START_NS, "duration_ns": -1, "stack": WAITS}
    event = HostEventRow(**(known | {"text": wait} | columns))
    program = Program(2, 2)
    program.all("barrier", "world")
    frames = run_of(program.rows, groups=program.groups, host_events=[event])
    lines = dict(enumerate(text.split("\n"), 1))
    chain = chain_to_setter(frames, ProgramText({"train.py": lines}), 1)
    return [(each.line, each.function) for each in chain]


def test_the_frames_of_the_call_that_sets_a_key_are_found() -> None:
    assert found(PROGRAM) == [(19, "<module>"), (17, "main"), (10, "load"), (6, "prepare")]


def test_a_key_in_a_variable_is_found() -> None:
    text = PROGRAM.replace(
        "if self.exists():\n            return", 'key = f"corpus/{split}"\n        print(key)'
    ).replace('set(f"corpus/{split}"', "set(key")
    assert found(text)[-1:] == [(6, "prepare")]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ('corpus/{split}", "ready', 'other/{split}", "ready'),
        ('set(f"corpus/{split}", "ready"', "add(self.name(split), 1"),
        ("self.prepare(split)", "self.maker(split)"),
    ],
)
def test_a_call_that_may_not_set_the_key_is_not_found(old: str, new: str) -> None:
    wait = "wait corpus/valid" if old else "wait index/1"
    assert found(PROGRAM.replace(old, new) if old else PROGRAM, wait) == []


def test_the_only_call_that_sets_any_key_is_found() -> None:
    text = PROGRAM.replace('f"corpus/{split}", "ready"', "self.key(split), 1")
    assert found(text)[-1:] == [(6, "prepare")]
    assert found(f"{text}\n\ndef other(store):\n    store.set(KEY, 1)\n") == []


def test_a_wait_that_has_ended_is_none() -> None:
    assert found(PROGRAM, duration_ns=5) == []
