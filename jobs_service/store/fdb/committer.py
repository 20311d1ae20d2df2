"""Commits that happen at most once: if the outcome of a commit is unknown, the store looks for its mark."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

import fdb

from jobs_service.errors import StoreError, StoreUnavailable, TransactionConflict
from jobs_service.log import EventLog
from jobs_service.store.base import OFFSET_BYTES, STAMP_BYTES
from jobs_service.store.commit_marks import HAPPENED, Mark, Marks
from jobs_service.store.counters import CommitTimes
from jobs_service.store.fdb.attempts import FIRST_PAUSE, LONGEST_PAUSE
from jobs_service.store.fdb.client import translated
from jobs_service.store.fdb.connection import Connection
from jobs_service.store.fdb.errors import may_have_committed
from jobs_service.store.fdb.transaction import FdbTransaction

T = TypeVar("T")

log = EventLog("jobs_service.store")

_LAST_WORDS: Final = 1000
"""Milliseconds that closing waits for the removal of the store's marks."""


class Committer(Connection):
    """The committing part of a store."""

    commit_times: CommitTimes

    @property
    def marks(self) -> Marks | None:
        """The marks of this store's commits; None until the directory is found."""
        return self._marks

    async def _commit(
        self, transaction: FdbTransaction, result: T, abandoned: Callable[[T], None] | None
    ) -> StoreError | None:
        """Commit; return None on success, else the failure of a commit whose function may run again.

        Raises:
            StoreError: the commit did not happen and never will; or, if StoreUnavailable, its outcome stays unknown.
        """
        assert self._marks is not None
        mark = self._marks.new()
        self._leave_mark(mark, transaction.native)
        assert self._loop is not None
        began = self._loop.time()
        commit = self._submit(transaction)
        try:
            failure = await self._outcome(transaction, commit, mark)
            if failure is None:
                self.commit_times.add(self._loop.time() - began)
            return failure
        except asyncio.CancelledError:
            # The commit goes on without its caller, who learns of it by `abandoned`.
            self._run_in_background(self._come_late(transaction, commit, mark, result, abandoned))
            raise

    def _leave_mark(self, mark: Mark, native: Any) -> None:
        """Add a mark, and the removal of old ones, to a transaction."""
        # A tombstone under this key conflicts with the commit, which can then not happen any more. The client ignores
        # read conflicts on keys that the transaction has written already, so this comes first.
        native.add_read_conflict_key(mark.key)
        native.set_versionstamped_value(mark.key, bytes(STAMP_BYTES) + HAPPENED + bytes(OFFSET_BYTES))
        for key in mark.removed:
            native.clear(key)

    def _submit(self, transaction: FdbTransaction) -> tuple[Any, Any]:
        """Send a commit, and return the futures of its outcome and its versionstamp."""
        stamp = transaction.native.get_versionstamp()
        return transaction.native.commit(), stamp

    async def _outcome(self, transaction: FdbTransaction, commit: tuple[Any, Any], mark: Mark) -> StoreError | None:
        """Wait for a commit; return None on success, else its failure: then it may be retried."""
        assert self._marks is not None
        committed, stamp = commit
        try:
            await self._bridge.until(committed)
            committed.wait()
        except fdb.FDBError as error:
            failure = translated(error)
            if may_have_committed(error.code):
                return await self._unknown_outcome(transaction, mark, failure)
            self._marks.not_committed(mark)
            if isinstance(failure, TransactionConflict):
                self._counters.conflicts += 1
            if not failure.retryable:
                raise failure from None
            return failure
        try:
            await self._bridge.until(stamp)
            transaction.stamp.value = stamp.value
        except fdb.FDBError as error:
            # The commit has happened. The mark has its versionstamp.
            return await self._unknown_outcome(transaction, mark, translated(error))
        self._counters.commits += 1
        self._marks.committed(mark)
        return None

    async def _unknown_outcome(self, transaction: FdbTransaction, mark: Mark, failure: StoreError) -> StoreError | None:
        """Resolve a commit of unknown outcome: return None if it happened, else its error."""
        assert self._marks is not None
        self._counters.unknown_commits += 1
        try:
            stamp = await self._find_out(mark, transaction.version.wait())
        except StoreError:
            self._marks.not_committed(mark)
            raise
        log.warning("commit_unknown", store=self.address, happened=stamp is not None, error=str(failure))
        if stamp is None:
            self._marks.prevented(mark)
            if not failure.retryable:
                raise failure
            return failure
        self._counters.unknown_commits_happened += 1
        self._counters.commits += 1
        self._marks.committed(mark)
        transaction.stamp.value = stamp
        return None

    async def _find_out(self, mark: Mark, began: int) -> bytes | None:
        """Return the versionstamp of a commit with an unknown outcome; None if it did not happen and never will.

        Args:
            mark: the commit's mark.
            began: the read version of its transaction.

        Raises:
            StoreUnavailable: the outcome stays unknown.
        """
        assert self._marks is not None
        pause = FIRST_PAUSE
        while True:
            native = self._database.create_transaction()
            try:
                version, value = native.get_read_version(), native.get(mark.key)
                await self._bridge.until(value)
                await self._bridge.until(version)
                stamp = self._marks.stamp_of(value.value, began, version.wait())
                if stamp is not None:
                    return stamp
                # A tombstone. Once it is written, a commit that is still under way conflicts with it.
                native.set_versionstamped_value(mark.key, bytes(STAMP_BYTES + OFFSET_BYTES))
                done = native.commit()
                await self._bridge.until(done)
                done.wait()
                return None
            except fdb.FDBError as error:
                failure = translated(error)
                if not failure.retryable and not may_have_committed(error.code):
                    raise StoreUnavailable(
                        f"store {self.address}: nobody can find out whether a commit happened: {failure}; "
                        "the write may have taken effect"
                    ) from None
            finally:
                self._network.cancel(native)
            await self.pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _come_late(
        self,
        transaction: FdbTransaction,
        commit: tuple[Any, Any],
        mark: Mark,
        result: T,
        abandoned: Callable[[T], None] | None,
    ) -> None:
        """Wait for a commit whose caller has gone, and call `abandoned` if it happened."""
        try:
            failure = await self._outcome(transaction, commit, mark)
        except StoreError as error:
            failure = error
        if failure is None and abandoned is not None:
            abandoned(result)

    async def _remove_marks(self) -> None:
        """Remove the marks of commits with a known outcome. If that fails, a sweeper removes them later."""
        keys = self._marks.take_settled() if self._marks is not None else []
        if not keys:
            return
        native = self._database.create_transaction()
        try:
            native.options.set_timeout(_LAST_WORDS)
            for key in keys:
                native.clear(key)
            await self._bridge.until(native.commit())
        except fdb.FDBError:
            pass
        finally:
            self._network.cancel(native)
