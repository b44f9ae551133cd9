"""Notes about a run that is watched: silent ranks, clocks, damage, and files left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from commtrace.live.life import ASLEEP, DIED, GONE, MEANINGS, SILENT, STOPPED
from commtrace.live.snapshot import LiveProblem
from commtrace.live.tail import number_fact, text_fact
from commtrace.live.watch import Watch
from commtrace.units import counted, text_of_duration, text_of_ranks

_SECOND = 1_000_000_000
_WORDS = {DIED: "dead", SILENT: "silent", GONE: "gone", STOPPED: "stopped"}


def problems_of_lives(watch: Watch, lives: Mapping[int, str]) -> list[LiveProblem]:
    """Return a problem for each state of ranks that stopped writing before they ended."""
    found = []
    for life in ASLEEP:
        ranks = tuple(sorted(rank for rank, each in lives.items() if each == life))
        if ranks:
            verb = "is" if len(ranks) == 1 else "are"
            text = text_of_ranks(ranks)
            found.append(
                LiveProblem(
                    problem=life,
                    ranks=ranks,
                    text=f"{text[0].upper()}{text[1:]} {verb} {_WORDS[life]}"
                    f"{_hosts_of(watch, ranks)}: {MEANINGS[life]}.",
                )
            )
    return found


def _hosts_of(watch: Watch, ranks: Iterable[int]) -> str:
    hosts = Counter(watch.ranks[rank].host for rank in ranks if rank in watch.ranks)
    everyone = Counter(each.host for each in watch.ranks.values())
    whole = [host for host in sorted(hosts) if host and hosts[host] == everyone[host]]
    if len(everyone) < 2 or not whole:
        return ""
    return f" (all of {', '.join(whole[:4])}{', ...' if len(whole) > 4 else ''})"


def notes_of(watch: Watch) -> list[str]:
    """Return the limits of the snapshot, and unusual facts about the run."""
    notes = []
    for host, ahead_s in watch.hosts.off().items():
        way = "ahead of" if ahead_s > 0 else "behind"
        off = text_of_duration(abs(ahead_s) * _SECOND)
        notes.append(
            f"the clock of {host} is about {off} {way} the clock of this machine: times of its "
            "ranks are corrected, but compare with times of other hosts only roughly"
        )
    recordings = watch.tail.recordings.values()
    damaged = [each.damage for each in recordings if each.damage]
    notes += [f"not read further: {text}" for text in damaged[:3]]
    if len(damaged) > 3:
        notes.append(f"{len(damaged) - 3} more files are not read further")
    if missed := sum(each.missed_segments for each in recordings):
        notes.append(
            f"{counted(missed, 'segment')} of ring recordings were replaced before they were "
            "read: rates lack their calls"
        )
    if watch.earlier:
        notes.append(f"{counted(len(watch.earlier), 'recording')} of earlier attempts left out")
    if restarted := [rank for rank, each in watch.ranks.items() if each.earlier]:
        notes.append(f"{text_of_ranks(restarted)} recorded before; the latest counts")
    every = run_fact(watch, "every")
    if every is not None:
        notes.append(
            f"only every {every}th step is recorded: calls of other steps, and hangs in "
            "them, are not seen"
        )
    dropped = {
        rank: number_fact(each.recording.facts, "num_dropped", 0)
        for rank, each in sorted(watch.ranks.items())
    }
    if num := sum(dropped.values()):
        ranks = text_of_ranks([rank for rank, each in dropped.items() if each > 0])
        notes.append(f"{counted(num, 'call')} of {ranks} dropped: not all of their calls are seen")
    left = watch.tail.num_left_out
    if left:
        notes.append(f"{counted(left, 'recording')} beyond the first are not read")
    return notes


_TEXTS = ("command", "process_group")
"""Facts of the run that are texts; all other facts used here are numbers."""


def run_fact(watch: Watch, name: str) -> Any:
    """Return a fact of the run from the first rank that has it, or None."""
    for _, rank in sorted(watch.ranks.items()):
        run = rank.recording.facts.get("run")
        if isinstance(run, dict) and name in run:
            return number_fact(run, name) if name not in _TEXTS else text_fact(run, name)
    return None
