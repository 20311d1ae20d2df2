"""The embedded store under interleavings of its threads, its loop and another process, chosen by seeds.

Whatever the order: no watch of an old value sleeps on, reads see what was committed before they began, all that took
effect is as good as one after the other, every call gets an answer, and closing ends. What these checks see is shown by
mutants of the store (tests/simulation/mutants).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.lmdb.foreign_process import ForeignProcess
from tests.store.lmdb.interleaving import play

PARTS = 2
SEEDS = 60


@pytest.fixture(scope="module")
def foreign() -> Iterator[ForeignProcess]:
    """Another process, for all tests."""
    with ForeignProcess() as process:
        yield process


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_the_order_nothing_is_missed(part: int, foreign: ForeignProcess) -> None:
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        try:
            play(seed, foreign)
        except BaseException:
            print(f"seed {seed}")
            raise
