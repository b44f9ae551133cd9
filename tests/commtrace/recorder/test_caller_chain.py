"""Lines of instructions, also of those that the compiler added."""

from __future__ import annotations

import sys

from commtrace.recorder.caller_chain import code_and_line, line_of


def handles(numbers: list[int]) -> None:
    for number in numbers:
        try:
            1 / number
        except ZeroDivisionError as error:
            del error


def test_an_instruction_without_a_line_has_that_before_it() -> None:
    code = handles.__code__
    lines, latest = {}, code.co_firstlineno
    for begin, end, line in code.co_lines():
        latest = line or latest
        lines |= dict.fromkeys(range(begin, end, 2), (line, latest))
    assert {instruction: line_of(code, instruction) for instruction in lines} == {
        instruction: known for instruction, (_, known) in lines.items()
    }
    assert any(line is None for line, _ in lines.values())


def test_a_frame_is_at_its_line() -> None:
    frame = sys._getframe()
    assert code_and_line(frame) == (frame.f_code, frame.f_lineno)
