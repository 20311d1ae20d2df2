"""The size of one transaction's writes: this module defines the bounds of every batch.

The rule: a transaction that rewrites an open number of records has a bound in bytes of the whole records (not only of
the new parts), and is halved if the store still refuses it as too large. How to keep it:

1. Code that takes all available jobs (from the queue, from an index) asks, inside the transaction, for
   `unit.load_fitting(keys, packed_ids)`: it reads and returns only as many, at least one, as fit. Outside of it the
   call goes through a Pace, which halves the number of jobs and lets it grow again:

       pace = Pace(Batch.of(store.limits, jobs=1000))  # kept from call to call
       moved = await pace.fitting(lambda size: transact(lambda unit: make_ready(unit, keys, now, size)))

2. Code that has a list of jobs and knows the size of their records gives both to a Pace:

       await pace.through(runs, size_of, renew)  # renew(part) is one transaction

3. Code that runs operations of many callers on one unit of work checks `unit.is_full` after each of them, and does the
   rest in the next transaction.

4. Code that reads records of unknown size lets the Pace measure them: `fitting(..., measure=...)`.

If an attempt is retried on temporary errors, errors that call for a smaller batch must be left out, since another
attempt would fail again: `Context.retried(..., unless=too_much_for(size))`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from jobs_service.errors import StoreError, TransactionTooLarge, TransactionTooOld
from jobs_service.store.base import Limits

Item = TypeVar("Item")
T = TypeVar("T")

TOO_MUCH: Final = (TransactionTooLarge, TransactionTooOld)
"""Errors of a store for transactions that are too large, or take too long."""


def too_much_for(size: int) -> tuple[type[StoreError], ...]:
    """Return the errors of a batch of `size` jobs that call for a smaller batch.

    A single job cannot be halved: if its transaction was too old, the store was slow, and another attempt may succeed.
    """
    return TOO_MUCH if size > 1 else (TransactionTooLarge,)


SHARE: Final = 4
"""One operation on many jobs fills at most a quarter of a transaction: others may share it, and stores add bytes of
their own to keys and values, unknown here."""

KEYS_OF_A_JOB: Final = 8
"""Approximate number of times that a transaction that adds a job holds its key. FoundationDB counts conflict ranges as
well: the keys of the record and of the index entry count three times each, and the existence check twice."""

_GROWTH: Final = 16


@dataclass(frozen=True, slots=True)
class Batch:
    """The most that one transaction takes: well within every store's limits.

    Attributes:
        jobs: number of jobs.
        bytes: of their keys and values; a single job may be larger.
    """

    jobs: int = 500
    bytes: int = 1_000_000

    @classmethod
    def of(cls, limits: Limits, *, jobs: int = 500, most_bytes: int | None = None) -> Self:
        """Return the batch of a store with these limits.

        Args:
            limits: of the store.
            jobs: most jobs.
            most_bytes: fewer bytes than the limits allow, where small transactions are better; None for the limits.
        """
        allowed = limits.transaction // SHARE
        return cls(jobs, allowed if most_bytes is None else min(allowed, most_bytes))

    def front(
        self, items: Sequence[Item], begin: int, size_of: Callable[[Item], int], most: int | None = None
    ) -> Sequence[Item]:
        """Return the next items that one transaction takes, at least one.

        Args:
            items: any objects that stand for the jobs.
            begin: number of items taken before.
            size_of: returns the approximate bytes of rewriting one of them.
            most: most items, if that is fewer than the batch takes.
        """
        room = Room(self.bytes)
        last = min(len(items), begin + (self.jobs if most is None else most))
        end = begin
        while end < last and room.takes(size_of(items[end])):
            end += 1
        return items[begin:end]


class Room:
    """Counts bytes up to a limit; the first row always fits.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._untouched = True

    def takes(self, size: int) -> bool:
        """Count so many bytes more, and return whether they fit."""
        self._left -= size
        fits = self._left >= 0 or self._untouched
        self._untouched = False
        return fits


class Pace:
    """The number of jobs per transaction: halved if they were too much, growing again otherwise.

    Args:
        batch: the most that one takes.
        first: number for the first one if the size of the records is not known yet; None for the batch's most.

    Attributes:
        size: number of jobs in the next transaction.
    """

    def __init__(self, batch: Batch, *, first: int | None = None) -> None:
        self.batch = batch
        self.size = batch.jobs if first is None else min(first, batch.jobs)

    async def fitting(
        self, attempt: Callable[[int], Awaitable[T]], *, measure: Callable[[T], tuple[int, int]] | None = None
    ) -> T:
        """Do something with as many jobs as fit into a transaction, and return its result.

        Args:
            attempt: called with the number; it reads and writes in one transaction each.
            measure: returns the number of jobs in a result, and their bytes, if only the result shows them; None if
                `attempt` itself keeps within the bytes of the batch.

        Raises:
            TransactionTooLarge, TransactionTooOld: even a single job is too much.
        """
        while True:
            size = self.size
            try:
                result = await attempt(size)
            except TOO_MUCH:
                if size == 1:
                    raise
                self.size = size // 2
            else:
                count, read = (size, 0) if measure is None else measure(result)
                if read > self.batch.bytes:
                    self.size = max(1, count * self.batch.bytes // read)
                elif count >= size:
                    self._grow()
                return result

    async def through(
        self,
        items: Sequence[Item],
        size_of: Callable[[Item], int],
        attempt: Callable[[Sequence[Item]], Awaitable[None]],
    ) -> None:
        """Do something with all items, one part after the other, each in one transaction.

        Args:
            items: any objects that stand for the jobs.
            size_of: returns the approximate bytes of rewriting one of them: see `layer.record.rewritten_bytes`.
            attempt: called with each part, and with the first half of it if that was too much; does one transaction,
                and handles its result.

        Raises:
            TransactionTooLarge, TransactionTooOld: even a single item is too much. The items before it have been done.
        """
        done = 0
        while done < len(items):
            part = self.batch.front(items, done, size_of, self.size)
            try:
                await attempt(part)
            except TOO_MUCH:
                if len(part) == 1:
                    raise
                self.size = len(part) // 2
            else:
                self._grow()
                done += len(part)

    def _grow(self) -> None:
        self.size = min(self.batch.jobs, 2 * self.size, self.size + max(1, self.batch.jobs // _GROWTH))
