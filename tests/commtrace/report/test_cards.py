from __future__ import annotations

from commtrace.analyze import load
from commtrace.report.answers import Answers
from commtrace.report.cards import consistency_summary, finding_cards
from tests.commtrace.analyze.rows import call, group, run_of
from tests.commtrace.analyze.training import training_trace


def test_a_finding_says_what_it_saves_and_which_calls_it_is_about() -> None:
    frames = load(training_trace(num_steps=9))
    table = Answers(frames)["findings"]
    cards = finding_cards(Answers(frames))
    assert [card.title for card in cards] == table["title"].tolist()
    late = next(card for card in cards if card.name == "straggler")
    assert late.saves.endswith(" ms")
    assert late.share.endswith("% of its steps")
    evidence = late.evidence.split(",")
    assert len(evidence) == 9  # one in each step, to which it is late
    assert set(evidence) <= {f"2:{each}" for each in frames.comm["id"]}


def test_the_summary_of_ranks_that_agree() -> None:
    found = consistency_summary(Answers(load(training_trace())))
    assert (found.word, found.mood, found.cards) == ("consistent", "good", ())
    assert found.verdict == ""
    assert found.text == (
        "No fault in 140 calls of 4 ranks: kind, reduction, root, type, size and order. "
        "Compared: 35 collectives."
    )


def test_the_summary_of_calls_of_which_a_part_could_be_compared() -> None:
    calls = [call(rank=rank, id=n, seq=n) for rank in range(2) for n in range(3 - rank)]
    found = consistency_summary(Answers(run_of(calls, run={"imported_from": "torch.profiler"})))
    assert (found.word, found.mood) == ("4 of 5 calls", "")
    assert found.text == (
        "No fault among the 4 of 5 calls that could be compared. Compared: 2 collectives; unknown: "
        "reduction, type, size. Not compared: 1 call in a group whose other ranks' calls the trace "
        "has lost."
    )
    alone = consistency_summary(
        Answers(run_of(calls[:3], run={"imported_from": "torch.profiler"}, num_ranks=1))
    )
    assert (alone.word, alone.mood) == ("–", "")
    assert alone.text.startswith("Not compared: ")


def test_a_problem_shows_the_calls_of_its_collective() -> None:
    shared = {"blocked_ns": 1}
    frames = run_of(
        [
            *(call(rank=rank, id=0, seq=0, at=rank, **shared) for rank in range(3)),
            *(call(rank=rank, id=1, seq=1, at=9 + rank, **shared) for rank in range(2)),
            call(rank=2, id=1, seq=1, at=12, kind="barrier", **shared),
        ],
        num_ranks=3,
        groups=[group(ranks=range(3))],
    )
    found = consistency_summary(Answers(frames))
    assert (found.word, found.mood) == ("1 fault", "bad")
    assert found.verdict == "Rank 2 went on to barrier 1 of tp, others to all_reduce 1 of tp"
    (card,) = found.cards
    assert card.evidence == "0:1,1:1,2:1"
    assert "blamed: rank 2" in card.facts


def test_one_rank_or_no_call_cannot_be_compared() -> None:
    assert consistency_summary(Answers(run_of())).word == "–"
    assert consistency_summary(Answers(run_of([call()], num_ranks=1))).word == "–"


def test_few_calls_of_many_ranks_are_counted_in_all() -> None:
    in_module = call(id=9, module="m")
    few = [in_module, *(call(id=n, seq=n) for n in range(3))]
    (card,) = finding_cards(Answers(run_of(few, num_ranks=64)))
    assert card.facts[-1] == "3 calls in all"
    assert card.title.startswith("In all, 3 calls of all_reduce in forward are outside of any")
    each = [in_module, *(call(rank=rank) for rank in range(64))]
    (card,) = finding_cards(Answers(run_of(each, num_ranks=64)))
    assert card.facts[-1] == "1 call per rank"


def test_many_ranks_that_are_blamed_are_contracted() -> None:
    types = ["float32"] * 200 + ["bfloat16"] * 100
    rows = [call(rank=rank, id=0, seq=0, dtype=dtype) for rank, dtype in enumerate(types)]
    (card,) = consistency_summary(Answers(run_of(rows, num_ranks=300))).cards
    assert "blamed: ranks 200-299 (100 ranks)" in card.facts
