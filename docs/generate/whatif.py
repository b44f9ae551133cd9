"""Write docs/whatif.md: replays of a run with changes, and the table of changes.

Run by `make docs`; a test compares the file with the output of this module.
"""

from __future__ import annotations

from pathlib import Path

from commtrace.analyze.replay.changes import VERBS, Verb

TARGET = Path(__file__).parents[1] / "whatif.md"

ABOUT = """\
# What would help

Written by `make docs` from `commtrace/analyze/replay/changes.py`: change that or
`docs/generate/whatif.py`, not this file.

A sum of blocked time does not say what a change would save: a rank that waits less for one call may
wait longer for the next. `commtrace whatif` replays a recorded run with a change and measures the
step again. Without a change, it tries those of the findings and those that apply to any run, and
lists the ones that make a step shorter, best first:

    commtrace whatif run.json

```text
step 390 ± 11 ms, of 29 steady steps
on the critical path: host work 48%, transfer 47%, return from the wait 5%

 1  saves 102 ms (26%)  Transfers of all_reduce on tp take 48% of the steps,
    195 ms of each, and nothing can hide them: their data is made right
    before, and used at once (2,145 calls in all, 125 kB on average).
    390 ± 11 ms -> 288 ms
    how: Fewer ranks on the axis. Sequence parallelism makes of it a
         reduce-scatter and an all-gather of the same bytes, which async
         tensor parallelism can hide. A larger batch: with twice of it,
         which is replayed, a sample has half of the latency.
    replayed: latency *0.5 where finding=1

 2  saves 52 ms (13%)  Ranks were ready to run but had no core for 10% of
    the time, 1.17 s of each on average; 4 ranks share a host.
    390 ± 11 ms -> 338 ms
    how: Give each rank cores of its own: fewer ranks on a host, fewer
         threads for each (OMP_NUM_THREADS, workers of data loaders), no
         other programs.
    replayed: cores where finding=4

 3  saves 13.1 ms (3.3%)  Two sums on tp, in tok_embeddings and
    pos_embeddings, are reduced apart and then added, 30 times per rank, in
    forward. Nothing else reads them.
    390 ± 11 ms -> 377 ms
    how: Add the partial sums, and reduce once: output_layouts=Partial() of
         both modules in the plan, and a redistribution of their sum; or
         all_reduce behind the addition.
    replayed: remove where finding=2

 4  limit: saves 200 ms (51%)  ideal network: transfers take no time
    390 ± 11 ms -> 191 ms
    how: a limit: no faster network and no other algorithm saves more
    replayed: shrink *0
```

Ranks of this run share cores, and half of a step is computation: an ideal network would make it
twice as fast. Changes that save less than the step varies are left out. [The page](report.md) opens with the
best change, and lists all of them in the section *What would help*.

This is the run of `make demo`. `commtrace findings run.json` lists these findings and those that save less, or
bytes only:

| finding | of the demo | with `--sequence-parallel` |
| --- | --- | --- |
| `dependent_communication` | all-reduces on tp take 48% of the steps | all-gathers take 21% |
| `sums_apart` | the sums of both embeddings are reduced apart, and then added | |
| `gathered_logits` | logits are gathered for the loss: use `loss_parallel` | the same |
| `overlap_lost` | | all-reduces of the norms' gradients are waited for at once, long before the optimizer uses them |
| `small_messages` | | these are 18 messages of 256 B in a step |
| `shared_cores` | four ranks share two cores | the same |

## Asking for a change

    commtrace whatif run.json overlap
    commtrace whatif run.json "remove where kind=barrier" "compute *0.8 where rank=3"
    commtrace whatif run.json overlap -o replayed.json

```text
overlap
step 390 ± 11 ms -> 370 ms  saves 20.6 ms (5.3%)
                       before   after    saved
step of rank 0         392 ms  376 ms  15.3 ms
step of rank 1         379 ms  361 ms    18 ms
step of rank 2         395 ms  375 ms  19.3 ms
step of rank 3         392 ms  374 ms  18.1 ms
blocked in all_reduce  258 ms  241 ms  17.8 ms
blocked in all_gather   13 ms   12 ms  1.01 ms
Wait at N x N           70 ms   57 ms  13.4 ms
then on the critical path: host work 46%, transfer 46%, return from the wait
6%, transfer in turn 2%
2,540 calls changed; for 93 the trace lacks what it needs; 0 of 25,481
dependencies are inferred
```

Several changes are made in turn, and together. `-o` writes the replayed run, which every command
reads: `commtrace timeline replayed.json`, `commtrace diff run.json replayed.json`. A replayed run
says so in every output, with its changes. In Python:

```python
import commtrace

run = commtrace.load("run.json")
run.whatif()  # the table of changes that pay
found = run.whatif("overlap", "remove where kind=barrier")
found.step_ns, found.replayed_step_ns, found.saved_ns  # the last two: at least, and at most
found.effects()  # step time by rank, blocked time by kind, waits by wait state
found.run.timeline()  # the replayed run has all views
```

`--json` has table [`whatif`](analyses.md); with changes, it has the numbers of the answer:

| field | value |
| --- | --- |
| `changes` | the changes |
| `step_ns`, `error_ns`, `num_steps` | step time as recorded, its standard error, and the number of steady steps; without steps 0, and the time of the run |
| `replayed_step_ns`, `saved_ns` | with the changes, each at least and at most |
| `num_calls`, `num_unknown` | calls that are changed, and calls for which the trace lacks what the change needs |
| `num_inferred`, `num_dependencies` | dependencies that the trace does not state, and all |
| `effects` | rows of `of`, `name`, `before_ns`, `after_ns`, `saved_ns`, as `--csv` has them |

## The changes

A change is a verb, a value if it takes one, and conditions after `where`, joined by `and`.
Conditions are written as for `commtrace dump --where`. They name a column of table `comm`, or `mesh_axis`; for
`compute`, they name a column of table `ops` or `kernels`. `finding=3` names the calls of the third row of table `findings`, and
`finding=3,5` the calls of two. `; ` separates changes that are one argument.

| change | value | meaning | example |
| --- | --- | --- | --- |
"""  # noqa: E501 - rows of a table

END = """\

A factor multiplies: `*0.5`, or `/2`. If a change is about some members of a collective, `remove`,
`merge` and changes of transfers are about all of them.

## What a replay is

The run becomes a graph of work. Points are instants: a host issues a call, a wait returns, a kernel
begins. Edges are work between them, and each has its recorded duration:

```text
rank 0  work ──> issue ──────────┐                          ┌─> return ─ work ─> end of step
                                 ├─> all arrived ─ transfer ┤
rank 1  longer work ────> issue ─┘                          └─> return ─ work ─> end of step
             └─ launch ─> kernel ─> kernel ─> ...   a stream of a device
```

A point happens once everything before it has. Replayed without a change, every instant is as
recorded. A change alters edges: `compute *0.5` halves those of work, `remove` takes out a call
with its transfer, and the time that Python usually takes to make a call; `merge` also takes what is
between two merged calls, if no operator ran and it is not much longer than usual. `overlap` moves
the issue to where the data was ready, and the wait to where the result was used. Then all instants
are computed again. A wait for a late rank is not an edge with a duration: it follows from the
arrivals, and so becomes shorter or longer by itself.

The time of a step is the median over steady steps of the mean over ranks. A step ends when its host
has ended it and its kernels have run.

If a run folder has more than 500,000 calls, steady steps in the middle are replayed: as many as
have 150,000 calls, or five. `--all-steps` (`run.whatif(..., all_steps=True)`) replays all of them
with given changes, in blocks that fit into memory. Two cores need three to four minutes for 10
million calls of 64 ranks (`python -m benchmarks.scale --calls 10000000 --replay "bandwidth *2"`). A
block begins as it was recorded, so that what runs ahead at its end does not reach the next one.

## Reading an answer

- **±** is the standard error of the step time, by the variation between steps. Times are printed to
  the digits that it bears. A saving below it cannot be verified by a single run of as many steps.
- A **range** has two replays. The trace does not tell how much of a transfer is latency if all
  messages of a kind are equally long; or it lacks when a result was used. The truth lies between
  *all* and *nothing* of it. The times by rank and kind, and the replayed run, are of the longer
  step.
- A **limit** shows what is at stake. A change of the program saves at most as much: an ideal
  network has no latency, and prefetching without bounds needs memory without bounds.
- **The trace lacks** when some data was ready or some result used, which are recorded with detail
  `op` on the CPU; or members of a call are missing, or their clocks contradict each other. These
  calls keep their times in one of the two replays of a range, or in the only one: the saving may be
  larger. If that is all that was asked for, the answer is an error, not 0.
- **Ranks run ahead** if a change lets some ranks end their steps earlier and earlier, until they
  wait for others in a later call. In a run of few steps it counts in each, in a long run once.
- **Inferred** dependencies are not stated by the trace: a host that waits for a device without a
  recorded synchronization, for example. If many are inferred, trust the answer less.
- Savings of several lines do not add up: replay the changes together.

## Modelled, and not

Modelled are the hosts' threads and their order, operators, calls with all members, point-to-point
transfers, waits, launches, streams, synchronizations and steps. Not modelled:

- **Contention.** Computation and communication that newly overlap slow each other down: on the CPU
  they share cores, on a GPU multiprocessors and memory. Collectives of a group that newly overlap
  are in turn; gloo's threads and NCCL's channels serve calls of several groups at a time, which a
  replay lets run at full speed. The truth saves less.
- **Memory.** Prefetched parameters and larger buckets need space; a replay does not know the limit.
- **Other kernels.** A smaller message may be sent by another algorithm.
- **More ranks.** `group_size` and `node_size` price the transfers of the recorded ranks. The latest
  of more ranks is later, several groups may share a link, and parameters that more ranks divide
  leave each of them less work in the optimizer.
- **Calls that devices run** keep their streams, and are issued no earlier. Where the trace does not
  name the kernels that use a result, `async` gives a range: from the recorded wait to none.
- **The optimizer's results.** `payload *0.5` does not know whether 16 bits suffice.

## Accuracy

`make bench-whatif` runs programs with a known cost, such as a needless gather, replays their runs
without it, runs the programs without it, and prints predicted and measured step times. Of 19
costs in 16 programs of 2 and 4 ranks over gloo, the median error was 0.7 to 1.8%; subtracting the
blocked time of the calls was wrong by 16%. A replay without a change gives the recorded times
of every call, of these runs and of profiles of GPUs; `--trace FILE` replays other files, too. The
part of the dependencies that are inferred is printed: 0.9% for eight GPUs that trained DLRM. For 22
recordings of healthy models, it lists no change that saves more than 3%, but for limits. What
remains, as predicted minus measured time on the critical path of a step:

| cause | median | largest | largest in |
| --- | --- | --- | --- |
| host work | 0.9% | 6% | collectives of objects that are removed: the first pickling stays |
| transfers | 0.3% | 7% | broadcasts that are removed: others are faster without them |
| issuing | 0.0% | 0.6% | sends that are issued earlier |
| waking up | 0.0% | 0.1% | the same |

The table leaves out small messages whose results no operator uses, which give a range. All programs
ran on one host, so that no clocks disagreed.

## From the answer to a change

1. Take the first line that is no limit. *how* names the setting or function.
2. `commtrace findings run.json` and `commtrace table run.json overlap_lost` name the lines of the
   calls; `commtrace whatif run.json "overlap where source_line=41"` tells whether a single line
   suffices.
3. `commtrace diff run.json replayed.json` shows the calls that differ.
4. Change the program, record it again, and compare: `commtrace diff run.json changed.json`. If the
   step is not as short as predicted, `commtrace diff replayed.json changed.json` shows where.
5. If nothing helps, the second line says what bounds the step. *Host work* is the program's own
   computation, or Python's; a *transfer* needs fewer bytes or faster links.
"""


def escaped(cell: str) -> str:
    """Escape pipes, so that a cell cannot end its own column."""
    return cell.replace("|", "\\|")


def _values(verb: Verb) -> str:
    nothing = () if verb.takes and verb.needs_value else ("none",)
    return " or ".join([*nothing, *verb.takes])


def render() -> str:
    """Render the document."""
    rows = [
        f"| `{name}` | {escaped(_values(verb))} | {escaped(verb.meaning)} | "
        f"`{escaped(verb.example)}` |\n"
        for name, verb in VERBS.items()
    ]
    return ABOUT + "".join(rows) + END


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET}")
