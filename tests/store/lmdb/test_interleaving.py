"""The embedded store under interleavings of its threads, its loop and another process, chosen by seeds.

Whatever the order: no watch of an old value sleeps on, reads see what was committed before they began, all that took
effect is as good as one after the other, every call gets an answer, and closing ends. That these checks find anything
is shown by defects, each of which they must catch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobs_service.store.lmdb import LmdbStore
from jobs_service.store.lmdb.watches import Watches
from tests.simulation.mutants.mutant import Defect, changed, together
from tests.store.lmdb.foreign_process import ForeignProcess
from tests.store.lmdb.interleaving import play

PARTS = 2
SEEDS = 60
MOST_SEEDS = 200
"""Within so many seeds each defect is caught."""
KNOWN_SEEDS = {
    "watches_are_registered_after_the_commit": 47,
    "own_commits_count_again": 58,
    "nobody_wakes_the_reader": 24,
    "a_look_that_is_put_off_forgets_what_it_saw": 14,
}
"""Seeds that have shown those that the first ones do not show. They only save time."""


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


def watches_are_registered_after_the_commit() -> Defect:
    """A look at another process's commit, right after the own one, does not know of the watch yet."""
    return changed(
        LmdbStore._commit,
        ("                self._watches.register(watched, number if place else number - 1)\n", ""),
        (
            "            self._reads.put(_look)\n",
            """            self._watches.register(watched, number if place else number - 1)
            self._reads.put(_look)
""",
        ),
    )


def nobody_wakes_the_reader() -> Defect:
    """The first watch of all is made by a transaction that writes, while the reader sleeps for good."""
    return changed(LmdbStore._commit, ("self._reads.put(_look)", "pass"))


def new_watches_are_not_looked_at_again() -> Defect:
    """A commit between the state that a read saw and the registration of its watch is nobody's."""
    return changed(LmdbStore._read, ("fired += self._changed_since(number, watched)", "pass"))


def new_watches_are_looked_at_before_they_are_registered() -> Defect:
    """A commit between the second look and the registration is nobody's."""
    return changed(
        LmdbStore._read,
        (
            """            self._watches.register(watched, number)
            self._at("reader: has registered watches")
""",
            "",
        ),
        (
            """            fired += self._changed_since(number, watched)
""",
            """            fired += self._changed_since(number, watched)
            self._at("reader: has registered watches")
            self._watches.register(watched, number)
""",
        ),
    )


def a_look_that_is_put_off_forgets_what_it_saw() -> Defect:
    """The version that a look has seen is noted although what it changed was not looked at."""
    return changed(
        LmdbStore._changed_elsewhere,
        (
            """            return []  # the next check finds it
""",
            """            self._seen_commit = number
            return []
""",
        ),
    )


def own_commits_count_again() -> Defect:
    """A commit that was noted late counts for another process's, which is overlooked."""
    return changed(LmdbStore._changed_elsewhere, ("popleft() > seen", "popleft() >= 0"))


def every_commit_is_taken_for_an_own_one() -> Defect:
    """A store that has committed itself since the last look does not look at what others have."""
    return changed(LmdbStore._changed_elsewhere, ("if number - seen <= own or not", "if own or not"))


def watches_are_taken_out_before_the_commit() -> Defect:
    """Whom a commit wakes is found out before it is there: who reads and watches meanwhile is not among them."""
    return changed(
        LmdbStore._commit,
        (
            """                self._at("writer: commits")
                transaction.commit()
""",
            """                fired = self._watches.changed(written, number)
                self._at("writer: commits")
                transaction.commit()
""",
        ),
        ("return self._watches.changed(written, number)", "return fired if place else []"),
    )


def a_watch_fires_for_its_own_transaction() -> Defect:
    """A look at an older state takes what a transaction has left for a change."""
    return changed(Watches._take, (" and made <= number", ""))


def a_looks_result_is_used_for_all_watches_of_a_key() -> Defect:
    """Watches of one key that saw different values are taken for equal."""
    return changed(Watches.register, ("self._expected[key] = _SEVERAL", "pass"))


def a_commit_fires_no_watch_itself() -> Defect:
    """The writer leaves the watches of what it writes to the looks, which pass over its commits."""
    return changed(LmdbStore._commit, ("return self._watches.changed(written, number)", "return []"))


def closing_fails_no_watch() -> Defect:
    """Who waits for a watch of a store that is closed waits for ever."""
    return changed(LmdbStore.close, ("for watch in self._watches.take_all():", "for watch in []:"))


def the_writer_swallows_the_end() -> Defect:
    """A store that is closed while calls are waiting does not end."""
    return changed(
        LmdbStore._run_writer,
        (
            """                        writes.put(None)  # the end comes after this batch
""",
            "",
        ),
    )


def the_reader_ends_without_an_answer() -> Defect:
    """Reads that were called before the closing, and come to the reader with it, are forgotten."""
    return changed(LmdbStore._run_reader, ("stopping = True\n", 'return self._at("reader: ends")\n'))


def a_result_of_the_last_moment_is_lost() -> Defect:
    """A caller that is canceled in the turn in which its answer comes is not told that its commit happened."""
    return changed(LmdbStore._ask, ("self._abandon(request)", "pass"))


def reads_see_what_was_there_before_they_were_called() -> Defect:
    """The reader begins its next transaction before it waits for who wants to read."""
    return together(
        changed(
            LmdbStore._run_reader,
            (
                """                self._at("reader: waits" if""",
                """                begin_early(self)
                self._at("reader: waits" if""",
            ),
            begin_early=begin_early,
        ),
        changed(
            LmdbStore._read,
            (
                """        transaction = self._map.begin()
        self._at("reader: has begun")
""",
                """        transaction = self.__dict__.pop("early")
        self._at("reader: has begun")
""",
            ),
        ),
    )


def begin_early(store: Any) -> None:
    """Begin a transaction, to be used later."""
    store.early = store._map.begin()


def versionstamps_are_counted_in_memory() -> Defect:
    """A versionstamp follows the last one of this process, not the store's."""
    return changed(
        LmdbStore._commit,
        ('version = int.from_bytes(transaction.get(_STAMP_KEY) or b"", "big") + 1', "version = count(self)"),
        count=count,
    )


def count(store: Any) -> int:
    """Return one more than the last time."""
    store.counted = getattr(store, "counted", 0) + 1
    return int(store.counted)


DEFECTS = [
    watches_are_registered_after_the_commit,
    nobody_wakes_the_reader,
    new_watches_are_not_looked_at_again,
    new_watches_are_looked_at_before_they_are_registered,
    a_look_that_is_put_off_forgets_what_it_saw,
    own_commits_count_again,
    every_commit_is_taken_for_an_own_one,
    watches_are_taken_out_before_the_commit,
    a_watch_fires_for_its_own_transaction,
    a_looks_result_is_used_for_all_watches_of_a_key,
    a_commit_fires_no_watch_itself,
    closing_fails_no_watch,
    the_writer_swallows_the_end,
    the_reader_ends_without_an_answer,
    a_result_of_the_last_moment_is_lost,
    reads_see_what_was_there_before_they_were_called,
    versionstamps_are_counted_in_memory,
]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.__name__.replace("_", " "))
def test_a_defect_is_caught_within_two_hundred_seeds(defect: Callable[[], Defect], foreign: ForeignProcess) -> None:
    with defect():
        for seed in (KNOWN_SEEDS.get(defect.__name__, 0), *range(MOST_SEEDS)):
            try:
                play(seed, foreign)
            except AssertionError as violation:
                print(f"seed {seed}: {violation}")
                return
    pytest.fail(f"{MOST_SEEDS} seeds did not show it")
