"""The through sequence: batches end in any order, and it never passes one that has not ended."""

import random

from hypothesis import given
from hypothesis import strategies as st

from jobs_service.replication.changes import ThroughSequence


def test_changes_of_batches_that_others_have_overtaken_are_counted() -> None:
    through = ThroughSequence(0)
    first, second, third, fourth = (through.begin(str(number), number) for number in (1, 2, 3, 4))
    assert through.passed_over == 0
    through.end(third)
    assert (through.highest, through.passed_over) == ("3", 3)
    through.end(first)
    assert through.passed_over == 2
    through.end(fourth)
    through.end(second)
    assert (through.seq, through.passed_over) == ("4", 0)


@given(st.lists(st.booleans(), max_size=30), st.randoms(use_true_random=False))
def test_it_is_the_last_sequence_of_the_longest_row_of_ended_batches(
    has_seq: list[bool], choices: random.Random
) -> None:
    through = ThroughSequence(None)
    batches = []
    ended: set[int] = set()
    begun = 0
    while len(ended) < len(has_seq):
        running = [number for number in range(begun) if number not in ended]
        if begun < len(has_seq) and (not running or choices.random() < 0.5):
            batches.append(through.begin(f"seq {begun}" if has_seq[begun] else None))
            begun += 1
        else:
            number = choices.choice(running)
            through.end(batches[number])
            ended.add(number)
        row = next((number for number in range(begun) if number not in ended), begun)
        expected = [f"seq {number}" for number in range(row) if has_seq[number]]
        assert through.seq == (expected[-1] if expected else None)
