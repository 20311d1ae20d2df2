"""Operations on jobs within the application's own transaction: plain methods, for code without an event loop."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from jobs_service.errors import JobsError
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.plain_transaction import PlainJobTransaction
from jobs_service.layer.transaction import JobTransaction
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import Worker
from jobs_service.sources import Sources
from jobs_service.store.base import Transaction
from jobs_service.store.sync_transaction import HeldBack, PlainTransaction, drive

_MOST_MOVES: Final = 0x8000
"""Moves of jobs after which the next block counts from zero again: more than fit into a transaction, and half of the
number range, so that every block has room for its own moves."""


class WithinTransaction(PlainJobTransaction):
    """The operations of JobTransaction as plain methods, over a transaction of the application: see JobsService.within.

    Arguments, results and errors are those of JobTransaction's coroutines. Every read blocks the calling thread.
    A block is entered once, and used by one thread at a time, not always the same.

    Attributes:
        kv: the transaction, for the application's own keys.
    """

    def __init__(self, blocks: Blocks, application: object, transaction: Transaction, keyspace: Keyspace) -> None:
        self._blocks = blocks
        self._application = application
        self._transaction = transaction
        self._keyspace = keyspace
        self._held = HeldBack(transaction)
        self._unit: _BlockUnit | None = None
        self._jobs: JobTransaction | None = None

    def __enter__(self) -> Self:
        if self._unit is not None:
            raise JobsError("this block was entered before; call jobs.within(tr) for each block")
        blocks = self._blocks
        self._unit = _BlockUnit(self._held, self._keyspace, blocks.sources, blocks.enter(self._application))
        self._jobs = JobTransaction(self._unit, blocks.worker, blocks.make_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._operations()
        unit = self._unit
        assert unit is not None
        self._jobs = None
        try:
            if kind is None:
                drive(unit.settle())
                unit.flush()
                self._held.hand_over()
        finally:
            self._blocks.leave(self._application, unit.moves)

    @property
    def kv(self) -> PlainTransaction:
        """The transaction itself: your own keys, in FoundationDB's vocabulary; written at once, not at the end."""
        return PlainTransaction(self._entered)

    def _operations(self) -> JobTransaction:
        if self._jobs is None:
            raise JobsError(
                "this block is not entered yet: write `with jobs.within(tr) as tx:`"
                if self._unit is None
                else "this block has ended; call jobs.within(tr) for another one"
            )
        return self._jobs

    def _entered(self) -> Transaction:
        self._operations()
        return self._transaction


class Blocks:
    """The blocks of one service: at most one at a time on each of the application's transactions.

    A job's place in the queue contains the number of its move within the transaction. A later block on the same
    transaction continues the count of the earlier block, so that no two jobs get the same place. This also holds when a
    retry loop begins the transaction again in between.

    Args:
        sources: wall-clock time and randomness.
        worker: the Worker of jobs that are accepted in a block.
        make_ready: most due jobs that one accept makes ready.
        check_open: raises when the service admits no operations.
    """

    def __init__(self, sources: Sources, worker: Worker, make_ready: int, check_open: Callable[[], None]) -> None:
        self.sources = sources
        self.worker = worker
        self.make_ready = make_ready
        self._check_open = check_open
        self._moves: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._open: weakref.WeakSet[object] = weakref.WeakSet()

    def enter(self, application: object) -> int:
        """Note the begin of a block on a transaction; return the number at which its count of moves begins.

        Raises:
            JobsError: another block has not ended yet.
            ServiceClosed: the service has been left since the block was made.
        """
        self._check_open()
        if application in self._open:
            raise JobsError("a block on this transaction is open already: hand its `tx` on, or end it first")
        self._open.add(application)
        return self._moves.get(application, 0) % _MOST_MOVES

    def leave(self, application: object, moves: int) -> None:
        """Note the end of a block.

        Args:
            application: its transaction.
            moves: number of moves on the transaction, earlier blocks included.
        """
        self._open.discard(application)
        self._moves[application] = moves


class _BlockUnit(UnitOfWork):
    """A unit of work that continues the earlier block's count of moves."""

    __slots__ = ()
    sweeps = False

    def __init__(self, transaction: Transaction, keyspace: Keyspace, sources: Sources, moves: int) -> None:
        super().__init__(transaction, keyspace, sources)
        self._orders = moves

    @property
    def moves(self) -> int:
        """The number of moves, earlier blocks included."""
        return self._orders
