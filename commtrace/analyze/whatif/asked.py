"""Replays of a run with changes that are given by their texts, which may name findings.

remove where kind=barrier              a change with conditions
remove where finding=3                 of the calls of the third row of table `findings`
merge where finding=3,5                of the calls of two rows
overlap; compute *0.5 where rank=0     two changes
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, overload

from commtrace.analyze.findings import reported
from commtrace.analyze.findings.savings import changes_of
from commtrace.analyze.replay.basis import Basis, replayed_calls
from commtrace.analyze.replay.changes import FINDING, Change, parsed, separate
from commtrace.analyze.replay.prediction import ChangedSteps, Prediction, predicted
from commtrace.analyze.run.frame import Frames
from commtrace.analyze.whatif.all_steps import in_all_steps
from commtrace.errors import UsageError
from commtrace.units import counted

_NUMBER = r"\d{1,9}"
_OF_FINDINGS = re.compile(rf"\s*{FINDING}\s*=\s*({_NUMBER}(?:\s*,\s*{_NUMBER})*)\s*")


@overload
def what_if(
    run: Frames, texts: Sequence[str], *, all_steps: Literal[False] = ...
) -> Prediction: ...


@overload
def what_if(run: Frames, texts: Sequence[str], *, all_steps: bool) -> ChangedSteps: ...


def what_if(run: Frames, texts: Sequence[str], *, all_steps: bool = False) -> ChangedSteps:
    """Replay a run with changes, given as `commtrace whatif` takes them.

    Args:
        run: The run.
        texts: The changes.
        all_steps: Replay all steady steps of a run of many calls, not only some in the middle.

    Raises:
        UsageError: A change is none, names nothing in the run or contradicts another, or would
            let a call wait for itself; there is no such finding; or the trace lacks times.
    """

    def changes_in(basis: Basis | None) -> list[Change]:
        return [change for text in texts for change in asked(run, text, basis)]

    answer = in_all_steps(run, changes_in) if all_steps else predicted(run, changes_in(None))
    if answer.is_unknown:
        raise UsageError(
            f"cannot tell what {answer.text!r} saves",
            found=f"{counted(answer.num_unknown, 'call')}, all without the times it needs",
            why="the trace lacks their other members, or when their data was ready and their "
            "results were used, which is recorded with --detail op on the CPU",
            attempt="remove, for the most that it could save, or a recording of all ranks with "
            "--detail op",
        )
    return answer


def asked(run: Frames, text: str, basis: Basis | None = None) -> list[Change]:
    """Return the changes with a text.

    Args:
        run: The run.
        text: The changes.
        basis: The part that is replayed; by default, as many steps as can be.

    Raises:
        UsageError: There is no such change, or no such finding.
    """
    return [change for each in separate(text) for change in _asked(run, each, basis)]


def _asked(run: Frames, text: str, basis: Basis | None) -> list[Change]:
    verb, _, where = text.partition(" where ")
    found = _OF_FINDINGS.fullmatch(where)
    if found is None:
        return [parsed(text)]
    every = reported(run)
    numbers = [int(number) for number in found[1].split(",")]
    if not all(1 <= number <= len(every) for number in numbers):
        raise UsageError(
            f"cannot make the change {text!r}",
            found=f"{counted(len(every), 'finding')} in this run",
            attempt="commtrace findings RUN, which lists them" if every else "other conditions",
        )
    own = [every[number - 1].finding for number in numbers]
    return [
        replace(each, text=text) for each in changes_of(basis or replayed_calls(run), verb, own)
    ]
