"""The statements by which two ranks parted, from their calls before and after.

What ranks do in each round, such as the root's part of a broadcast, is no parting. If one of them
went its own usual way, the other is compared with its own earlier rounds.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest

import pandas as pd

from commtrace.analyze.divergence.circumstances import Circumstances
from commtrace.analyze.divergence.deciding import (
    DecidingLine,
    lines_freezing,
    lines_grouping,
    lines_reducing,
    lines_skipping,
)
from commtrace.analyze.divergence.explaining import Explainer
from commtrace.analyze.divergence.program_text import (
    CallChain,
    ProgramText,
    chain_of,
    frames_of_text,
)
from commtrace.analyze.divergence.rounds import has_left_loop
from commtrace.analyze.divergence.sequences import OF_SITE, Parting
from commtrace.analyze.divergence.splits import Seen
from commtrace.analyze.divergence.storing import chain_to_setter
from commtrace.analyze.divergence.unlike_modules import UnlikeModule, chain_to
from commtrace.analyze.run.frame import Frames
from commtrace.schema import EXIT, FATAL

_MOST_ROUNDS = 200
_OF_LINE = ("source_file", "source_line")
_LOOP = re.compile(r"(?:async )?for\b|while\b")


def branch_text(
    frames: Frames,
    calls: pd.DataFrame,
    parted: Parting,
    ranks: tuple[int, int],
    unlike: UnlikeModule | None = None,
) -> str:
    """Return the statements by which two ranks parted, with their lines; empty if not known.

    Args:
        frames: The run.
        calls: Calls of both ranks, as `calls_of_ranks` returns them.
        parted: The calls at which they part.
        ranks: The rank that did something else, and the other rank.
        unlike: A module that only one rank ran before a call of its backward pass.
    """
    text = ProgramText.of(frames)
    sides = zip((parted.own, parted.others), ranks, strict=True)
    if any(call is None and not _has_ended(frames, rank) for call, rank in sides):
        return _text_of(_by_store(frames, text, parted, ranks))
    in_pass = _in_forward_pass(calls, text, unlike)
    if in_pass is not None:
        return _text_of(in_pass)
    if parted.own is not None and _differ_in_group(parted.own, parted.others):
        in_group = lines_grouping(text, _chain(parted.own))
        if in_group:
            return _text_of(in_group)
    pair = _deviating(calls, parted, ranks)
    if pair is None:
        return ""
    own, others, compared = pair
    common = () if parted.common is None else _chain(parted.common[0])
    chains = [
        _exit_chain(frames, text, rank) if each is None else _chain(each)
        for each, rank in zip((own, others), compared, strict=True)
    ]
    seen = Circumstances(frames, calls, parted, ranks, compared)
    has_begun_anew = _has_begun_anew(calls, parted.common, own)
    has_left = compared == ranks and has_left_loop(
        frames, calls, None if parted.common is None else parted.common[1], others
    )
    explainer = Explainer(
        text,
        seen.of,
        _looped(own, others),
        has_begun_anew=has_begun_anew,
        has_left_loop=has_left,
    )
    found = explainer.lines(common, *chains)
    is_loop = len(found) == 1 and bool(_LOOP.match(found[0].text)) and not seen.has_ended_data()
    if parted.earliest_ns >= 0 and not explainer.is_doubtful and (is_loop or not found):
        in_any = _in_any_round(text, calls, (own, others), found, compared)
        found = in_any or (found if explainer.is_once_more else ())
    elif is_loop and compared[0] == compared[1]:  # or an earlier round of it was left out
        either = _in_any_round(text, calls, (own, others), found, compared)
        found = either if {found[0].line} & {each.line for each in either} else found
    of_backward = [
        each for each in (own, others) if each is not None and each["phase"] == "backward"
    ]
    if not found and not explainer.is_doubtful and len(of_backward) == 1:
        chain = _chain(of_backward[0])
        found = lines_reducing(text, chain) or lines_freezing(text, chain)
    # The statement that a rank was in when it ended did not decide.
    left = {(each.file, each.line) for each in chains[0] or ()} if own is None else ()
    return _text_of(each for each in found if (each.file, each.line) not in left)


def _by_store(
    frames: Frames, text: ProgramText, parted: Parting, ranks: tuple[int, int]
) -> tuple[DecidingLine, ...]:
    """Return the statements by which a rank did not set a key that the other waits for."""
    if parted.own is None or parted.others is not None:
        return ()
    setter = chain_to_setter(frames, text, ranks[1])
    seen = Seen((ranks[0], ranks[0]), is_sure=False)
    common = () if parted.common is None else _chain(parted.common[0])
    explainer = Explainer(text, lambda *_: seen)
    return explainer.lines(common, _chain(parted.own), setter) if setter else ()


def _in_forward_pass(
    calls: pd.DataFrame, text: ProgramText, unlike: UnlikeModule | None
) -> tuple[DecidingLine, ...] | None:
    """Return the condition by which a module was not run; None if its class is not known."""
    found = None
    while unlike is not None and not found:
        if chain := chain_to(calls, text, unlike):
            seen = Seen((unlike.lacked, unlike.ran))
            found = Explainer(text, lambda *_, seen=seen: seen).lines((), None, chain)
        unlike = unlike.inner
    return found


def _in_any_round(
    text: ProgramText,
    made: pd.DataFrame,
    sides: tuple[pd.Series | None, pd.Series | None],
    end_of_loop: tuple[DecidingLine, ...],
    ranks: tuple[int, int],
) -> tuple[DecidingLine, ...]:
    """Return the statement by which a call among many alike can have been left out.

    It is the end of the loop if every round makes the call; two that are as likely are both
    returned, the second as an alternative.

    Args:
        text: The program.
        made: Calls of both ranks.
        sides: The next call of either rank; the first rank has left out the other's call, or has
            made its own, which it made before, once more than the other rank.
        end_of_loop: A loop that may have ended earlier on a rank; empty if there is none.
        ranks: Both ranks.
    """
    own, others = sides
    calls = [each for each in (others, own) if each is not None]
    is_more = own is not None and _made_before(made, own)
    may_skip, loop = (), None
    for each in calls if is_more else calls[:1]:
        may_skip, loop = lines_skipping(text, _chain(each), ranks) or (may_skip, loop)
        if may_skip or loop in end_of_loop:
            break
    backward = [each for each in calls if each["phase"] == "backward"]
    reducing = lines_reducing(text, _chain(backward[0])) if backward else ()
    ends = [loop] if loop is not None and loop in end_of_loop else []
    found = [*dict.fromkeys([*may_skip, *reducing, *ends])]
    if len(found) > 2:
        return ()
    return *found[:1], *(replace(each, is_alternative=True) for each in found[1:])


def _made_before(calls: pd.DataFrame, call: pd.Series) -> bool:
    """Return whether a rank has made such a call before."""
    earlier = calls[(calls["rank"] == call["rank"]) & (calls["id"] < call["id"])]
    return bool((earlier[[*OF_SITE]] == call[[*OF_SITE]]).all(axis=1).any())


def _text_of(found: Iterable[DecidingLine]) -> str:
    return "".join(
        f"{(' or ' if each.is_alternative else ', ') if place else ''}"
        f"`{each.text}` ({each.file}:{each.line})"
        for place, each in enumerate(found)
    )


def _has_ended(frames: Frames, rank: int) -> bool:
    return bool(frames.ranks.loc[frames.ranks["rank"] == rank, "complete"].all()) and not (
        frames.run.get("imported_from")
    )


def _chain(call: pd.Series) -> CallChain:
    place = (call[name] for name in ("callers", "source_file", "source_line", "source_function"))
    callers, file, line, function = place
    return chain_of(str(callers), str(file), int(line), str(function))


def _exit_chain(frames: Frames, text: ProgramText, rank: int) -> CallChain | None:
    """Return the frames in which a rank has called an exit, or raised; None if it did not.

    Empty if they are not known, or if an exception came from a line without a `raise`, which is the
    cause then, rather than a branch.
    """
    events = frames.host_events
    rows = events[(events["rank"] == rank) & events["kind"].isin((EXIT, FATAL))]
    if rows.empty:
        return None
    event = rows.iloc[-1]
    chain = frames_of_text(str(event["stack"]))
    if event["kind"] == EXIT or str(event["text"]).startswith(SystemExit.__name__):
        return chain or None
    graph = text.graph(chain[-1]) if chain else None
    at = graph.at(chain[-1].line) if graph is not None else []
    return chain if any(isinstance(node.part, ast.Raise) for node in at) else ()


def _looped(own: pd.Series | None, others: pd.Series | None) -> str | None:
    """Return the common name of the different modules that two calls concern.

    Returns:
        `layers` for modules `layers.1` and `layers.2`; empty if the calls differ in their step
        only; None if they differ otherwise.
    """
    if own is None or others is None:
        return None
    if own["module"] == others["module"]:
        return "" if own["step"] != others["step"] else None
    pairs = [str(each["module"]).split(".") for each in (own, others)]
    names = list(zip_longest(*pairs, fillvalue=""))
    first = next(place for place, (mine, theirs) in enumerate(names) if mine != theirs)
    is_index = any(name.isdecimal() for name in names[first])
    return names[first - 1][0] if is_index and first else None


def _deviating(
    calls: pd.DataFrame, parted: Parting, ranks: tuple[int, int]
) -> tuple[pd.Series | None, pd.Series | None, tuple[int, int]] | None:
    """Return the calls to compare and their ranks: both next calls, or one's next and usual call.

    None if both did what they did in earlier rounds.
    """
    own, others = parted.own, parted.others
    if ranks[0] != ranks[1] and all(_is_of_role(calls, call) for call in (own, others)):
        return None
    if parted.common is None:
        return own, others, ranks
    mine, theirs = _site(own), _site(others)
    rounds = _rounds(calls, parted.common, ranks)
    if any((_site(one), _site(other)) == (mine, theirs) for one, other in rounds):
        return None
    for one, other in reversed(rounds):
        sites = _site(one), _site(other)
        if sites[0] == sites[1]:
            continue
        if sites[0] == mine and sites[1] != mine:
            return other, others, (ranks[1], ranks[1])  # the other rank did something new
        if sites[1] == theirs and sites[0] != theirs:
            return own, one, (ranks[0], ranks[0])
    return own, others, ranks


def _differ_in_group(own: pd.Series, others: pd.Series | None) -> bool:
    """Return whether two calls are made at the same line, in different groups."""
    return others is not None and _site(own) == _site(others) and own["group"] != others["group"]


def _is_of_role(calls: pd.DataFrame, call: pd.Series | None) -> bool:
    """Return whether a rank makes a call of its line again and again, and the other rank never."""
    if call is None:
        return False
    is_own = calls["rank"] == call["rank"]
    at_its_line = (calls[[*_OF_LINE]] == call[[*_OF_LINE]]).all(axis=1)
    return (at_its_line & is_own).sum() > 1 and not (at_its_line & ~is_own).any()


def _site(call: pd.Series | None) -> tuple[object, ...] | None:
    return None if call is None else tuple(call[name] for name in OF_SITE)


def _has_begun_anew(
    calls: pd.DataFrame, common: tuple[pd.Series, pd.Series] | None, own: pd.Series | None
) -> bool:
    """Return whether a rank's next call is the first of another round of alike calls.

    They were as many in a row as before, and the next has the size of the first of them.
    """
    if common is None or own is None or _site(common[0]) != _site(own):
        return False
    rows = calls[(calls["rank"] == own["rank"]) & (calls["thread"] == own["thread"])]
    rows = rows[rows["id"] <= own["id"]]
    is_alike = (rows[[*OF_SITE]] == own[[*OF_SITE]]).all(axis=1)
    round_of = (~is_alike).cumsum()[is_alike]
    *before, last = round_of.groupby(round_of).size().tolist()
    sizes = rows["payload_bytes"][is_alike].tail(last).tolist()
    return last > 2 and {*before} == {last - 1} and sizes[-1] == sizes[0] != sizes[-2]


def _rounds(
    calls: pd.DataFrame, common: tuple[pd.Series, pd.Series], ranks: tuple[int, int]
) -> list[tuple[pd.Series | None, pd.Series | None]]:
    """Return the calls that followed earlier calls like the last common call, on each of two ranks.

    Among alike calls in a row, the calls at the same place of the row count, if there are any.
    """
    followed: list[dict[int, tuple[pd.Series, bool]]] = []
    for call, rank in zip(common, ranks, strict=True):
        rows = calls[(calls["rank"] == rank) & (calls["thread"] == call["thread"])]
        alike = rows["group"].eq(call["group"]) & rows["number"].ge(0) & ~rows["is_transfer"]
        for name in OF_SITE:
            alike &= rows[name] == call[name]
        in_row = alike.groupby((~alike).cumsum()).cumsum()
        is_last = rows["id"].eq(call["id"]) & alike
        at_place = in_row == (in_row[is_last].iloc[0] if is_last.any() else 1)
        alike &= rows["id"] < call["id"]
        places = alike.to_numpy().nonzero()[0][-_MOST_ROUNDS:]
        followed.append(
            {
                int(rows["number"].iloc[place]): (rows.iloc[place + 1], bool(at_place.iloc[place]))
                for place in places
                if place + 1 < len(rows)
            }
        )
    own, other = followed
    numbers = sorted(own.keys() & other.keys())
    at_place = [number for number in numbers if own[number][1] and other[number][1]]
    return [(own[number][0], other[number][0]) for number in at_place or numbers]
