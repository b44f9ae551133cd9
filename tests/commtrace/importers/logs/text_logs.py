"""Text that ranks print: lines of torch's watchdog as its releases spell them, and of NCCL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

HEADS = {
    "1.13": "[E ProcessGroupNCCL.cpp:737] ",
    "2.1": "[E ProcessGroupNCCL.cpp:475] ",
    "2.3": "[rank{rank}]:[E816 01:45:40.182996369 ProcessGroupNCCL.cpp:607] ",
    "2.5": "[rank{rank}]:[E626 06:24:44.903881913 ProcessGroupNCCL.cpp:616] ",
    "2.8": "[rank{rank}]:[E1126 06:24:44.903881913 ProcessGroupNCCL.cpp:685] ",
}
LABELS = {
    "2.3": "[PG {group} ({description}) Rank {own}] ",
    "2.5": "[PG ID {id} PG GUID {group}({description}) Rank {own}] ",
    "2.8": "[PG ID {id} PG GUID {group}({description}) Rank {own}] ",
}
STATUSES = {
    "2.1": "Timeout at NCCL work: {at}, last enqueued NCCL work: {enqueued}, last completed NCCL "
    "work: {completed}.",
    "2.3": "Exception (either an error or timeout) detected by watchdog at work: {at}, last "
    "enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.5": "Exception (either an error or timeout) detected by watchdog at work: {at}, last "
    "enqueued NCCL work: {enqueued}, last completed NCCL work: {completed}.",
    "2.8": " failure detected by watchdog at work sequence id: {at} PG status: last enqueued work: "
    "{enqueued}, last completed work: {completed}",
}
WORKS = {
    "1.13": "WorkNCCL(SeqNum={at}, OpType={op}, Timeout(ms)=1800000)",
    "2.1": "WorkNCCL(SeqNum={at}, OpType={op}, NumelIn={sent}, NumelOut={received}, "
    "Timeout(ms)=1800000)",
}
RELEASES = tuple(HEADS)


@dataclass(frozen=True)
class Stuck:
    """A rank at its time-out: `at` is the number of the collective that timed out, 0 if none."""

    rank: int
    at: int
    enqueued: int
    completed: int
    op: str = "ALLREDUCE"
    sent: int = 1024
    received: int = 1024
    group: str = "0"
    description: str = "default_pg"
    id: int = 0
    own: int = -1

    def lines(self, release: str) -> list[str]:
        """Return the lines that the rank prints."""
        own = self.rank if self.own < 0 else self.own
        fields = {**vars(self), "own": own}
        head = HEADS[release].format(**fields)
        label = LABELS.get(release, "[Rank {own}] ").format(**fields)
        lines = []
        if self.at:
            work = WORKS.get(release, WORKS["2.1"]).format(**fields)
            caught = (
                f"[Rank {own}] Watchdog caught collective operation timeout: {work} ran for "
                "1800044 milliseconds before timing out."
            )
            lines.append(head + caught)
        if release in STATUSES:
            lines.append(head + label + STATUSES[release].format(**fields))
        if self.at:
            ended = f"Process group watchdog thread terminated with exception: {caught}"
            lines.append(f"{head}{label}{ended}")
        return lines


NOISE = (
    "Epoch 0:   6%|██        | 32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6]",
    "W1126 06:24:45.019000 4711 torch/distributed/elastic/multiprocessing/api.py:900] Sending",
    "/usr/lib/python3/dist-packages/x.py:1: UserWarning: last enqueued nothing",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
)


def watchdog_log(*ranks: Stuck, release: str = "2.5") -> str:
    """The text of several ranks mixed, among other output."""
    lines = [each.lines(release) for each in ranks]
    mixed = [
        of_rank[n] for n in range(max(map(len, lines))) for of_rank in lines if n < len(of_rank)
    ]
    text = [NOISE[n % len(NOISE)] + "\n" + line for n, line in enumerate(mixed)]
    return "\n".join(text) + "\n"


def hang(behind: int = 2, ranks: int = 4) -> list[Stuck]:
    """Ranks that wait in the collective 8, which the rank `behind` has not issued."""
    stuck = [Stuck(rank, 8, 9, 7) for rank in range(ranks) if rank != behind]
    return [*stuck, Stuck(behind, 0, 7, 7)]


def nccl_line(rank: int, text: str, host: str = "node0") -> str:
    """A line of NCCL's log, of the process of a rank."""
    return f"{host}:{4711 + rank}:{4811 + rank} [{rank}] NCCL INFO {text}"


def nccl_init(
    rank: int, size: int, pointer: int = 0x55D0, name: int | str = 0x9C1E, own: int = -1
) -> str:
    """The line by which a communicator is created; `name` may be how a parent was split."""
    own = rank if own < 0 else own
    about = f"commId {name:#x}" if isinstance(name, int) else name
    return nccl_line(
        rank,
        f"ncclCommInitRank comm {pointer + rank:#x} rank {own} nranks {size} cudaDev {rank} "
        f"nvmlDev {rank} busId 1b000 {about} - Init COMPLETE",
    )


def nccl_call(
    rank: int, number: int, size: int, pointer: int = 0x55D0, function: str = "AllReduce",
    **fields: int,
) -> str:  # fmt: skip
    """A line of a call."""
    values: Mapping[str, int] = {"count": 256, "datatype": 7, "op": 0, "root": 0, **fields}
    return nccl_line(
        rank,
        f"{function}: opCount {number:x} sendbuff 0x7f0210 recvbuff 0x7f0220 count "
        f"{values['count']} datatype {values['datatype']} op {values['op']} root {values['root']} "
        f"comm {pointer + rank:#x} [nranks={size}] stream 0x55c0",
    )
