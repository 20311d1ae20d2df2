"""How much one transaction rewrites: the one home of the bounds of every batch.

The rule: no transaction that rewrites an open number of records is without a bound in bytes of the whole records (not
only of what is new in them), and without being halved when the store says that it was too much all the same. How:

1. Who takes as many jobs as there are (from the queue, from an index) asks, inside the transaction, for
   `unit.load_fitting(keys, packed_ids)`: it reads and returns only as many, at least one, as fit. Outside of it the
   call goes through a Pace, which halves the number of jobs and lets it grow again:

       pace = Pace(Batch.of(store.limits, jobs=1000))  # kept from call to call
       moved = await pace.fitting(lambda size: transact(lambda unit: make_ready(unit, keys, now, size)))

2. Who has a list of jobs and knows how large their records are gives both to a Pace:

       await pace.through(runs, size_of, renew)  # renew(part) is one transaction

3. Who runs operations of many callers on one Unit looks after each of them whether the `unit.is_full`, and does those
   that are left in the next transaction.

4. Who reads records that nobody knows the size of lets the Pace measure what came: `fitting(..., measure=...)`.

An attempt that is repeated on errors that may pass must let through what a smaller batch helps against, because another
attempt does not: `Context.retried(..., unless=too_much_for(size))`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from jobs_service.errors import StoreError, TransactionTooLarge, TransactionTooOld
from jobs_service.layer.record import Record
from jobs_service.layer.record_format import LARGEST_HEAD
from jobs_service.store.base import Limits

Item = TypeVar("Item")
T = TypeVar("T")

TOO_MUCH: Final = (TransactionTooLarge, TransactionTooOld)
"""What a store raises when a transaction was larger, or took longer, than it allows."""


def too_much_for(size: int) -> tuple[type[StoreError], ...]:
    """Return the errors after which a smaller batch than one of `size` jobs is the answer.

    Of a single job the answer to "too old" is another attempt: the store was slow.
    """
    return TOO_MUCH if size > 1 else (TransactionTooLarge,)


SHARE: Final = 4
"""One operation that takes many jobs fills at most one part in so many of a transaction: others may come beside it, and
what a store adds to the bytes of keys and values is not known here."""

KEYS_OF_A_JOB: Final = 8
"""How often a transaction that adds a job holds its key, about: FoundationDB counts the ranges that are read and
written as well, and so record and index entry three times each, and the look whether it is there twice."""

_GROWTH: Final = 16
_INDEX_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """What one transaction takes at most: well within every store's limits.

    Attributes:
        jobs: how many.
        bytes: of their keys and values; a single job may be larger.
    """

    jobs: int = 500
    bytes: int = 1_000_000

    @classmethod
    def of(cls, limits: Limits, *, jobs: int = 500, most_bytes: int | None = None) -> Self:
        """Return the batch of a store with these limits.

        Args:
            limits: of the store.
            jobs: at most so many.
            most_bytes: fewer bytes than the limits allow, where small transactions are better; None for what they do.
        """
        allowed = limits.transaction // SHARE
        return cls(jobs, allowed if most_bytes is None else min(allowed, most_bytes))

    def front(
        self, items: Sequence[Item], begin: int, size_of: Callable[[Item], int], most: int | None = None
    ) -> Sequence[Item]:
        """Return the next items that one transaction takes, at least one.

        Args:
            items: whatever stands for the jobs.
            begin: how many of them were taken before.
            size_of: returns the bytes that rewriting one of them takes, about.
            most: at most so many, if that is fewer than the batch takes.
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
        """Whether so many bytes more fit; they are counted."""
        self._left -= size
        fits = self._left >= 0 or self._untouched
        self._untouched = False
        return fits


class Pace:
    """How many jobs go into one transaction: half as many when they were too much, more again when they were not.

    Args:
        batch: the most that one takes.
        first: how many the first one takes, where nobody knows yet how large they are; None for as many as can be.

    Attributes:
        size: how many jobs the next transaction takes.
    """

    def __init__(self, batch: Batch, *, first: int | None = None) -> None:
        self.batch = batch
        self.size = batch.jobs if first is None else min(first, batch.jobs)

    async def fitting(
        self, attempt: Callable[[int], Awaitable[T]], *, measure: Callable[[T], tuple[int, int]] | None = None
    ) -> T:
        """Do something with so many jobs as fit into a transaction, and return its result.

        Args:
            attempt: called with the number; it reads and writes in one transaction each.
            measure: returns how many jobs a result is of, and their bytes, where only that tells; None where `attempt`
                itself takes no more bytes than the batch may have.

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
        """Do something with all of these, one part after the other, each in one transaction.

        Args:
            items: whatever stands for the jobs.
            size_of: returns the bytes that rewriting one of them takes, about: see `rewritten_bytes`.
            attempt: called with each part, and with the first half of it when that was too much; one transaction, and
                what is to be done with its answer.

        Raises:
            TransactionTooLarge, TransactionTooOld: even a single one is too much. Those before it have been done.
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


def most_rewritten_bytes(jobs: int, read: int, ids: int, key_bytes: int) -> int:
    """Return what the `rewritten_bytes` of several jobs add up to at most.

    Args:
        jobs: how many.
        read: bytes of their records as stored.
        ids: bytes of their packed ids.
        key_bytes: length of the key of one in the queue, without priority, versionstamp and id.
    """
    # A priority is in the record, and counts five times.
    return 5 * read + 3 * ids + jobs * (LARGEST_HEAD + 3 * (key_bytes + _INDEX_BYTES))


def rewritten_bytes(record: Record, key_bytes: int) -> int:
    """Return the bytes that rewriting a job takes of a transaction, about: its record, and its entries in the indexes.

    Args:
        record: as it is, or as it will be.
        key_bytes: length of its key in the queue, without priority and versionstamp.
    """
    return record.size() + 3 * (key_bytes + len(record.priority) + _INDEX_BYTES)
