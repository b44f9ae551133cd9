"""Small runs of two ranks with known times, each with a single reason for which overlap is lost.

Times are in µs. Each of the steps is the same and lasts `STEP_US`; both ranks do the same at once.
"""

from __future__ import annotations

from typing import Any

from commtrace.analyze import Frames, load
from commtrace.tracefile import Trace
from tests.commtrace.analyze.rows import START_NS, call, group, kernel, op, rank_row, step, trace_of

US = 1000
STEP_US = 10_000
NUM_STEPS = 3
MIB = 1 << 20


class Program:
    """Calls, operators and kernels of a step, from which a run is made."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.ops: list[dict[str, Any]] = []
        self.kernels: list[dict[str, Any]] = []

    def runs(self, at: float, until: float, name: str = "aten.tanh.default", **known: Any) -> None:
        """Run an operator."""
        self.ops.append({"at": at, "until": until, "op": name} | known)

    def sends(
        self,
        at: float,
        until: float,
        *,
        waits: float = -1,
        ready: float = -1,
        used: float = -1,
        **known: Any,
    ) -> None:
        """Make a call; it blocks the rank from `waits` on, by default from its issue on."""
        times = {"at": at, "until": until, "waits": waits, "ready": ready, "used": used}
        self.calls.append(times | known)

    def computes(self, at: float, until: float, **known: Any) -> None:
        """Run a kernel."""
        self.kernels.append({"at": at, "until": until} | known)

    def run(self, num_steps: int = NUM_STEPS) -> Frames:
        """The run of some such steps."""
        return load(self.trace(num_steps))

    def trace(self, num_steps: int = NUM_STEPS) -> Trace:
        """Its trace."""
        ranks = range(2)
        steps = range(num_steps)
        return trace_of(
            [self._call(rank, n, k) for rank in ranks for n in steps for k in range(self._each)],
            ops=[self._op(rank, n, k) for rank in ranks for n in steps for k in range(self._runs)],
            kernels=[self._kernel(rank, n, k) for rank in ranks for n in steps for k in self._work],
            steps=[
                step(rank, n, n * STEP_US * US, (n + 1) * STEP_US * US)
                for rank in ranks
                for n in steps
            ],
            ranks=[rank_row(rank, end_ns=START_NS + num_steps * STEP_US * US) for rank in ranks],
            groups=[group()],
        )

    @property
    def _each(self) -> int:
        return len(self.calls)

    @property
    def _runs(self) -> int:
        return len(self.ops)

    @property
    def _work(self) -> range:
        return range(len(self.kernels))

    def _call(self, rank: int, n: int, k: int) -> Any:
        known, base = dict(self.calls[k]), n * STEP_US
        at, until, waits, ready, used = (
            known.pop(name) for name in ("at", "until", "waits", "ready", "used")
        )
        sent = known.pop("sent", -1)
        if "between" in known:
            source, target = known.pop("between")
            known |= {"kind": "send" if rank == source else "recv"}
            known |= {"peer": target if rank == source else source}
            if rank == source:
                at, waits = sent, until  # it never blocks
        is_sync = waits < 0
        columns = {
            "rank": rank, "id": n * self._each + k, "seq": n * self._each + k, "step": n,
            "at": round((base + at) * US), "until": round((base + until) * US),
            "blocked_ns": round((until - (at if is_sync else waits)) * US),
            "call_ns": round((until - at) * US) if is_sync else 0, "is_async": not is_sync,
            "source_file": "train.py", "source_line": 7, "payload_bytes": MIB,
        }  # fmt: skip
        for name, instant in (("data_ready_ns", ready), ("result_used_ns", used)):
            if instant >= 0:
                columns[name] = START_NS + round((base + instant) * US)
        return call(**(columns | known))

    def _op(self, rank: int, n: int, k: int) -> Any:
        known = dict(self.ops[k])
        at, until = (known.pop(name) for name in ("at", "until"))
        times = {"at": round((n * STEP_US + at) * US), "duration_ns": round((until - at) * US)}
        where = {"phase": "forward", "step": n, "level": "local"}
        return op(rank=rank, id=n * self._runs + k, parent=-1, **(times | where | known))

    def _kernel(self, rank: int, n: int, k: int) -> Any:
        known = dict(self.kernels[k])
        at, until = (round((n * STEP_US + known.pop(name)) * US) for name in ("at", "until"))
        number = n * len(self.kernels) + k
        if "call_id" in known:
            known["call_id"] += n * self._each
        return kernel(rank=rank, id=number, at=at, until=until, **known)


def issued_late() -> Program:
    """An all-reduce of 2 ms whose input was ready 4 ms before, while others ran for 3 ms."""
    program = Program()
    program.runs(0, 1_000)
    program.runs(1_500, 4_500, "aten.mm.default", module="layers.0")
    program.sends(5_000, 7_000, ready=1_000, used=7_000)
    program.runs(7_000, 9_000)
    return program


def of_unknown_dependencies() -> Program:
    """The same, without the times at which data was ready and used."""
    program = issued_late()
    program.calls[0] |= {"ready": -1, "used": -1}
    return program


def waited_at_once() -> Program:
    """An all-reduce of 2 ms whose result is used 3 ms after it; operators run for half of them."""
    program = Program()
    program.runs(0, 1_000)
    program.sends(1_000, 3_000, ready=1_000, used=6_000, module="head", phase="backward")
    program.runs(3_000, 4_500, "aten.mm.default", module="layers.1")
    program.runs(6_000, 9_000)
    return program


def wrong_bucket_order() -> Program:
    """Two buckets: the second was ready 4 ms before the first."""
    program = Program()
    program.runs(0, 5_000, "aten.mm.default", module="layers.0", phase="backward")
    program.runs(5_000, 6_000, "aten.mm.default", module="layers.1", phase="backward")
    known = {"carries": "gradients", "phase": "backward", "payload_bytes": MIB // 2}
    program.sends(6_000, 7_000, waits=6_100, ready=6_000, used=9_000, parameters="a", **known)
    program.sends(6_010, 9_000, waits=7_000, ready=2_000, used=9_000, parameters="b", **known)
    return program


def late_prefetch() -> Program:
    """Parameters of a block that are gathered before its forward pass, after the block before."""
    program = Program()
    program.runs(0, 4_000, "aten.mm.default", module="layers.0")
    known = {"kind": "all_gather", "carries": "parameters", "module": "layers.1"}
    program.sends(4_000, 6_000, ready=3_990, used=6_000, parameters="w", **known)
    program.runs(6_000, 9_000, "aten.mm.default", module="layers.1")
    return program


def serial_receives() -> Program:
    """Two consecutive receives on rank 1, of data that rank 0 sends at once."""
    program = Program()
    program.runs(0, 1_000)
    program.sends(1_000, 3_000, between=(0, 1), sent=1_000)
    program.sends(3_000, 5_000, between=(0, 1), sent=1_000)
    return program


def gather_then_matmul() -> Program:
    """A gather of 4 MiB in 2 ms, whose result a matrix product of 3 ms uses at once."""
    program = Program()
    program.runs(0, 1_000)
    known = {"kind": "all_gather", "payload_bytes": 4 * MIB, "module": "up"}
    program.sends(1_000, 3_000, ready=1_000, used=3_000, **known)
    program.runs(3_000, 6_000, "aten.mm.default", module="up")
    return program


def large_bucket() -> Program:
    """One bucket of 8 MiB for two layers; the gradients of the last are ready 2 ms earlier."""
    program = Program()
    program.runs(1_000, 2_000, "aten.mm.default", module="layers.1", phase="backward")
    program.runs(2_000, 4_000, "aten.mm.default", module="layers.0", phase="backward")
    names = "layers.1.weight,layers.0.weight"
    known = {"carries": "gradients", "phase": "backward", "payload_bytes": 8 * MIB}
    program.sends(4_000, 7_000, ready=4_000, used=7_000, parameters=names, **known)
    return program


def small_buckets() -> Program:
    """Twenty buckets of 4 kB, each of which takes 0.2 ms behind the backward pass."""
    program = Program()
    program.runs(0, 1_000, "aten.mm.default", module="layers.0", phase="backward")
    known = {"carries": "gradients", "phase": "backward", "payload_bytes": 4_000}
    for n in range(20):
        at = 1_000 + 200 * n
        program.sends(at, at + 200, ready=at, used=at + 200, parameters=f"w{n}", **known)
    return program


def one_stream() -> Program:
    """A kernel of a collective on the stream of the device's only other kernels."""
    program = Program()
    program.computes(0, 2_000)
    program.computes(2_000, 5_000, category="communication", name="ncclDevKernel", call_id=0)
    program.computes(5_000, 6_000)
    program.sends(2_000, 5_000, device="cuda:0", stream=7)
    return program


def overlapped() -> Program:
    """A healthy step: buckets in order behind the backward pass, the next block's parameters
    behind this block's forward pass, and a sum that is used at once."""
    program = Program()
    gathers = {"kind": "all_gather", "carries": "parameters", "module": "layers.1"}
    program.sends(0, 1_000, waits=990, ready=0, used=2_000, parameters="w", **gathers)
    program.runs(10, 2_000, "aten.mm.default", module="layers.0")
    program.runs(2_000, 4_000, "aten.mm.default", module="layers.1")
    known = {"carries": "gradients", "phase": "backward", "payload_bytes": 4 * MIB}
    program.sends(6_000, 7_500, waits=7_500, ready=6_000, used=9_000, parameters="b", **known)
    program.runs(4_000, 6_000, "aten.mm.default", module="layers.1", phase="backward")
    program.runs(6_010, 8_000, "aten.mm.default", module="layers.0", phase="backward")
    program.sends(8_000, 8_300, ready=8_000, used=8_300, parameters="a", **known)
    program.sends(8_500, 8_600, ready=8_490, used=8_600, payload_bytes=4, phase="other")
    return program
