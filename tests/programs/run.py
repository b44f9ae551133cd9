"""Run a program on a single device and on the ranks of a mesh, and compare all values.

The comparison covers every result at its creation, every variable at the end (in-place operators
change some), and all gradients. Ranks return copies of their local parts, which are compared
afterwards, because communication could repair or hide a fault.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import CodeType
from typing import Any

import torch
import torch.nn.functional as F

from dtensor_core import init_device_mesh
from dtensor_core.testing import RankFailure, kept_mesh, run_processes, run_threads
from tests.programs import lists
from tests.programs.database import Sampled, op, op_, sampled
from tests.programs.documented import reason_of, without_documented_values
from tests.programs.given import with_other_bits
from tests.programs.lay import Held, Mismatch, lay, put_together, redistribute, summed
from tests.programs.program import Program, Statement, names_in, total

Kept = tuple[str, Any]
Change = Callable[[Mapping[str, Any], str, str], Any]
# Ranks that wait for each other are seen at once; this is for one that computes without end.
_DEADLINE_S = 120
SCOPE = {
    "torch": torch, "F": F, "redistribute": redistribute, "summed": summed,
    "op": op, "op_": op_, "sampled": sampled, "Sampled": Sampled, **lists.FUNCTIONS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stopped:
    """Statement at which a rank stopped, and the error without text that differs between runs."""

    number: int
    error: str


def outcome(code: CodeType, values: Mapping[str, Any]) -> Any:
    """Evaluate an expression over a program's values."""
    return eval(code, SCOPE, dict(values))


def unchanged(values: Mapping[str, Any], name: str, code: str) -> Any:
    """The value itself."""
    return values[name]


def results_of(
    program: Program, given: Mapping[str, Any], change: Change = unchanged
) -> Iterator[Kept]:
    """Each result as it is made, each variable at the end, each gradient, with its description.

    A statement that is to raise has its error. Statements read results that `change` made.
    """
    values: dict[str, Any] = dict(given)
    for number, statement in enumerate(program.statements):
        try:
            result = outcome(statement.compiled(), values)
        except Exception as error:
            if not statement.raises:
                raise _Stop(Stopped(number, _text(error))) from error
            yield f"error of {statement}", Refusal(_text(error))
            continue
        if statement.raises:
            yield f"error of {statement}", "no error"
            continue
        _assign(values, statement, result)
        for name in statement.targets:
            yield f"{name}, of {statement}", values[name]
            values[name] = change(values, name, statement.code)
    if any(statement.in_place for statement in program.statements):
        yield from ((f"{name} at the end", value) for name, value in values.items())
    if program.differentiated:
        try:
            eval(total(program.differentiated), SCOPE, values).backward()
        except Exception as error:
            raise _Stop(Stopped(len(program.statements), _text(error))) from error
    for name, each in given.items():
        if each.is_leaf and each.grad is not None:
            yield f"gradient of {name}", each.grad


class Refusal(str):
    """Text of an error; any two compare equal, and ranks are compared by their texts."""


class _Stop(Exception):
    """A statement raised unexpectedly."""

    def __init__(self, stopped: Stopped) -> None:
        super().__init__(stopped.error)
        self.stopped = stopped


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def on_one_device(
    program: Program, nudge: float = 0.0, turn: int = 0, change: Change = unchanged
) -> list[Kept]:
    """All results as a single device computes them, from values that are a little off if wanted."""
    given = {g.name: g.full(nudge, turn).requires_grad_(g.requires_grad) for g in program.given}
    return [(text, _copied(value)) for text, value in results_of(program, given, change)]


def _copied(value: Any) -> Any:
    """Copy a tensor with its memory layout; a value that is no tensor stays as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    once = value.detach()
    for dim, step in enumerate(value.stride()):
        if step == 0 and value.shape[dim] > 1:
            once = once.narrow(dim, 0, 1)
    copy = torch.empty_strided(once.shape, once.stride(), dtype=value.dtype)
    return copy.copy_(once).expand(value.shape).requires_grad_(value.requires_grad)


def _quietly(program: Program) -> list[Kept]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return on_one_device(program)


def on_a_rank(program: Program, mesh: Any) -> list[Kept] | Stopped:
    """Return all results of a rank, or where it stopped."""
    given = {g.name: lay(g, mesh) for g in program.given}
    found: list[Kept] = []
    try:
        for text, value in results_of(program, given):
            try:
                found.append((text, Held.of(value)))
            except Mismatch as error:
                if not text.startswith("gradient"):
                    raise
                return Stopped(len(program.statements), _text(error))
    except _Stop as stop:
        return stop.stopped
    return found


def _on_a_process(program: Program) -> list[Kept] | Stopped:
    return on_a_rank(program, init_device_mesh("cpu", program.mesh_shape))


def on_threads(program: Program) -> list[list[Kept] | Stopped]:
    """Run all ranks as threads and return their results.

    Raises:
        Mismatch: Some ranks stop while others wait for them.
    """
    stopped: list[Stopped] = []

    def on_a_thread() -> list[Kept] | Stopped:
        found = on_a_rank(program, kept_mesh(program.mesh_shape))
        if isinstance(found, Stopped):
            stopped.append(found)
        return found

    try:
        return run_threads(on_a_thread, program.ranks, timeout_s=_DEADLINE_S)
    except RankFailure as error:
        if not stopped:
            raise
        raise Mismatch(f"ranks stop apart: {set(stopped)}, and others wait\n{error}") from None


def on_processes(program: Program) -> list[list[Kept] | Stopped]:
    """Run all ranks as processes that communicate by gloo, and return their results."""
    return run_processes(_on_a_process, program.ranks, program, timeout_s=_DEADLINE_S)


def check(
    program: Program, run: Callable[[Program], list[list[Kept] | Stopped]] = on_threads
) -> tuple[Program, list[str]]:
    """Run a program and compare it; statements with documented errors are left out.

    Returns:
        The program that was compared, and the reasons why statements were left out.

    Raises:
        Mismatch: A result differs from a single device's, or ranks stop unexpectedly or for
            different
            reasons. Other errors of a rank propagate.
    """
    left_out: list[str] = []
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ranks = run(program)
        stopped = [rank for rank in ranks if isinstance(rank, Stopped)]
        if not stopped:
            try:
                compare(program, ranks, _quietly(program))
            except OtherStride as error:
                if not is_meta_stride(program, error):
                    raise
                left_out.append("torch's meta kernel has other strides")
                program = program.without({error.name})
                continue
            except Mismatch:
                without = without_documented_values(program)
                if without is None:
                    raise
                reason, program = without
                left_out.append(reason)
                continue
            return program, left_out
        if len(stopped) < len(ranks) or len(set(stopped)) > 1:
            raise Mismatch(f"ranks stop apart: {set(stopped)}, {len(stopped)} of {len(ranks)}")
        number = stopped[0].number
        code = "; ".join(map(str, program.statements))
        statement = (*program.statements, f"the gradients of {code}")[number]
        reason = reason_of(str(statement), stopped[0].error)
        if reason is None:
            before = replace(program, statements=program.statements[:number], differentiated=())
            compared, reasons = check(before, run) if number else (before, [])
            if not reasons:
                raise Mismatch(f"{statement}\n{stopped[0].error}")
            left_out += reasons
            program = program.without(before.targets() - compared.targets())
            continue
        left_out.append(reason)
        if isinstance(statement, Statement):
            program = program.without({statement.targets[0]})
        else:
            program = replace(program, differentiated=())
        if not _runs(program):
            return program, left_out


def _runs(program: Program) -> bool:
    """Return whether a single device still runs a program from which a write was removed."""
    try:
        _quietly(program)
    except Exception:
        return False
    return True


def compare(program: Program, ranks: Sequence[Any], expected: list[Kept]) -> None:
    """Raise Mismatch for the first result of the ranks that is not as expected."""
    texts = [text for text, _ in expected]
    laid = [*program.given, *(value for _, value in ranks[0] if isinstance(value, Held))]
    placements = [placement for each in laid for placement in each.placements]
    summed = any(each.is_partial("sum") or each.is_partial("avg") for each in placements)
    for rank in ranks:
        if [text for text, _ in rank] != texts:
            raise Mismatch(f"results {[text for text, _ in rank]}, expected {texts}")
    for number, (text, full) in enumerate(expected):
        held = [rank[number][1] for rank in ranks]
        name = text.partition(",")[0]
        try:
            _compare(program, held, full, summed=summed)
            is_made = text.startswith(f"{name}, of") and isinstance(full, torch.Tensor)
            if is_made and not same_stride(held[0].stride, full.stride(), full.shape):
                raise OtherStride(name, held[0].stride, full.stride())
        except AssertionError as error:
            layout = getattr(held[0], "placements", "")
            error.args = (f"{text}\n{layout}\n{error}",)
            raise


class OtherStride(Mismatch):
    """A result with a global stride that differs from a single device's."""

    def __init__(self, name: str, found: Sequence[int], expected: Sequence[int]) -> None:
        super().__init__(f"stride {tuple(found)} for {tuple(expected)}")
        self.name, self.found = name, found


def is_meta_stride(program: Program, error: OtherStride) -> bool:
    """Return whether a result's stride matches torch's meta kernels, or they have none.

    They differ from the CPU kernels in places; no stride is guaranteed there.
    """
    values: dict[str, Any] = {
        g.name: g.full().requires_grad_(g.requires_grad) for g in program.given
    }
    for statement in program.statements:
        if statement.raises:
            continue
        if error.name in statement.targets:
            break
        _assign(values, statement, outcome(statement.compiled(), values))
    else:
        raise error
    metas = {name: as_meta(value) for name, value in values.items()}
    try:
        _assign(metas, statement, outcome(statement.compiled(), metas))
    except Exception:
        return True
    made = metas[error.name]
    return same_stride(error.found, made.stride(), made.shape)


def as_meta(value: Any) -> Any:
    """Create a meta tensor with the same strides; a value that is no tensor stays as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _assign(values: dict[str, Any], statement: Statement, result: Any) -> None:
    results = result if statement.several else [result]
    values.update(zip(statement.targets, results, strict=True))


class Inexact(Mismatch):
    """Numbers of `program` outside of the tolerance, which rounding may explain."""

    def __init__(self, text: str, program: Program) -> None:
        super().__init__(text)
        self.program = program


def is_rounding(error: Exception) -> bool:
    """Return whether rounding explains an error."""
    return isinstance(error, Inexact) and is_unstable(error.program)


def _compare(program: Program, held: list[Any], full: Any, *, summed: bool) -> None:
    """Raises Mismatch if a result is not as expected; it may be `summed`, a sum of terms."""
    if isinstance(full, Refusal):
        if any(not isinstance(each, Refusal) for each in held):
            raise Mismatch(f"one device raises {full}")
        if len(set(held)) > 1:
            raise Mismatch(f"ranks raise {set(held)}")
        return
    if not isinstance(full, torch.Tensor):
        for each in held:
            if not _alike(each, full, program.precision.tolerance):
                raise Mismatch(f"{held} for {full}")
        return
    found = put_together(held, program.mesh_shape)
    if found.dtype != full.dtype or found.shape != full.shape:
        raise Mismatch(f"{found.dtype} {found.shape} for {full.dtype} {full.shape}")
    if held[0].requires_grad != full.requires_grad:
        raise Mismatch(f"requires_grad is {held[0].requires_grad}")
    if summed:
        found, full = _without_infinities(found, full)
    try:
        same(found, full, program.precision.tolerance)
    except AssertionError as error:
        raise Inexact(str(error), program) from None


def _without_infinities(
    found: torch.Tensor, expected: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace elements that are finite in neither by 0: partial sums may turn an infinity into nan.

    docs/operators.md guarantees only that a result is finite if and only if a single device's is.
    """
    if not (expected.is_floating_point() or expected.is_complex()):
        return found, expected
    both = ~(found.isfinite() | expected.isfinite())
    return found.detach().masked_fill(both, 0), expected.detach().masked_fill(both, 0)


def same_stride(found: Sequence[int], expected: Sequence[int], shape: Sequence[int]) -> bool:
    """Return whether two strides are equivalent: dims of size 1 and empty tensors do not count."""
    if 0 in shape:
        return True
    steps = zip(found, expected, shape, strict=True)
    return all(one == other for one, other, size in steps if size > 1)


def _alike(found: Any, expected: Any, tolerance: float) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return (found != found and expected != expected) or math.isclose(
            found, expected, rel_tol=tolerance, abs_tol=tolerance
        )
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        return all(_alike(*pair, tolerance) for pair in zip(found, expected, strict=True))
    return type(found) is type(expected) and found == expected


def is_unstable(program: Program) -> bool:
    """Return whether perturbed values change a result of a single device by more than rounding may.

    Inputs and intermediate results are perturbed.
    """
    exact, nudge = _quietly(program), program.precision.nudge
    for turn in range(1, 9):
        dice = torch.Generator().manual_seed(turn)
        change = partial(rounded, nudge, dice)
        try:
            nudged = on_one_device(program, nudge, turn, change)
            for (_, one), (_, other) in zip(exact, nudged, strict=True):
                if isinstance(one, torch.Tensor):
                    same(other, one, program.precision.stable)
        except Exception:
            return True
    return False


def rounded(
    nudge: float,
    dice: torch.Generator,
    values: Mapping[str, Any],
    name: str,
    code: str,
) -> Any:
    """A result as another order of additions may round it; multiples of 1/64 are exact if they fit.

    Means are inexact, since the order of division and summation may differ. A zero from nonzero
    operands gets a random sign, and a nan any bits. Values that share memory are not perturbed.
    """
    value = values[name]
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    others = [v for other, v in values.items() if other != name and isinstance(v, torch.Tensor)]
    memory = value.untyped_storage().data_ptr()
    if 0 in value.stride() or any(v.untyped_storage().data_ptr() == memory for v in others):
        return value
    full = value.detach().double()
    off = torch.randn(full.shape, generator=dice, dtype=full.dtype)
    fits = full.abs() * 64 * torch.finfo(value.dtype).eps < 1
    is_exact = ((full * 64).frac() == 0) & fits & ("mean" not in code)
    moved = torch.where(is_exact, full, full * (1 + off * nudge))
    read = [values[each] for each in names_in(code)]
    if all(bool(each.all()) for each in read if isinstance(each, torch.Tensor)):
        moved = torch.where(full == 0, full.copysign(off), moved)
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
    copy.data.copy_(moved)
    return with_other_bits(copy, off < 0)


def same(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Raise AssertionError if two tensors differ in dtype or shape, or by more than rounding."""
    scale = 1.0
    if expected.numel() and (expected.is_floating_point() or expected.is_complex()):
        largest = expected.detach().abs().double().nan_to_num(0, 0, 0).max()
        scale = max(1.0, float(largest))
    torch.testing.assert_close(
        found.detach(), expected.detach(), rtol=tolerance, atol=tolerance * scale, equal_nan=True
    )
