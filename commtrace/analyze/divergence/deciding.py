"""Lines that decided on a round of a loop, on the group of a call, or on a backward pass."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from commtrace.analyze.divergence.control_flow import FlowNode
from commtrace.analyze.divergence.grouping import choosing_group
from commtrace.analyze.divergence.program_text import (
    CallChain,
    ProgramText,
    files_beside,
    shown,
)
from commtrace.analyze.divergence.reducing import contexts_around, freezing, reducing
from commtrace.analyze.divergence.skipping import skipping


@dataclass(frozen=True, slots=True)
class DecidingLine:
    """A line of the source that decided, without its indentation and comment.

    Attributes:
        is_alternative: It is about as likely as the line before it.
    """

    file: str
    line: int
    text: str
    is_alternative: bool = False


def lines_of(text: ProgramText, file: str, nodes: Iterable[FlowNode]) -> tuple[DecidingLine, ...]:
    """Return the lines of some statements of a file."""
    lines = text.lines(file)
    texts = {node.first: shown(lines.get(node.first, "")) for node in nodes}
    return tuple(DecidingLine(file, line, text) for line, text in texts.items())


def lines_skipping(
    text: ProgramText, chain: CallChain, ranks: tuple[int, int]
) -> tuple[tuple[DecidingLine, ...], DecidingLine] | None:
    """Return statements by which a round may leave out a call, and the loop of these rounds.

    A loop with as many rounds on all ranks, over parameters say, is part of the call if all of
    its rounds make it. None if a function on the way is unknown, or no loop is around the call.
    """
    found: list[DecidingLine] = []
    since: list[DecidingLine] = []
    around = None
    for frame in reversed(chain):
        graph = text.graph(frame)
        if graph is None:
            break
        nodes, loop, is_alike = skipping(graph, frame.line, ranks)
        since += lines_of(text, frame.file, nodes)
        if loop is None:
            continue
        around = lines_of(text, frame.file, [loop])[0]
        found, since = [*found, *since], []
        if found or not is_alike:
            break
    return None if around is None else (tuple(found), around)


def lines_grouping(text: ProgramText, chain: CallChain) -> tuple[DecidingLine, ...]:
    """Return the condition by which the group of a call was chosen; empty if unknown."""
    found = choosing_group(text, chain)
    return lines_of(text, found[0], [found[1]]) if found is not None else ()


def lines_reducing(text: ProgramText, chain: CallChain) -> tuple[DecidingLine, ...]:
    """Return the condition under which a backward pass reduces gradients; empty if unknown.

    It may be in a function that makes a context, as `with accumulation.context():` calls.
    """
    for frame in reversed(chain):
        graph = text.graph(frame)
        contexts = [] if graph is None else contexts_around(graph, frame.line)
        makers = [each for name in contexts for each in text.named(name, frame.file)]
        for each in (frame, *makers):
            graph = text.graph(each)
            node = None if graph is None else reducing(graph)
            if node is not None:
                return lines_of(text, each.file, [node])
    return ()


def lines_freezing(text: ProgramText, chain: CallChain) -> tuple[DecidingLine, ...]:
    """Return the only condition of a program under which gradients are required, or are not."""
    files = files_beside(each.file for each in chain)
    trees = {file: tree for file in files if (tree := text.tree(file)) is not None}
    found = [(file, node) for file, tree in trees.items() for node in freezing(tree)]
    return lines_of(text, found[0][0], [found[0][1]]) if len(found) == 1 else ()
