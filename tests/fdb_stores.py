"""FoundationDB stores for tests: one that leaves all keys to the test, and one whose commits have chosen fates."""

from __future__ import annotations

from typing import Any

import fdb
import pytest

from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.commit_marks import Mark, Marks
from jobs_service.store.fdb import FdbStore
from jobs_service.store.fdb.client import Network
from jobs_service.store.fdb.transaction import FdbTransaction
from tests.stores import plain_settings
from tests.unsure import Fates


def clear_cluster(cluster_file: str) -> None:
    """Remove all keys; blocks."""
    Network.started(plain_settings().fdb_library)
    transaction = fdb.open(cluster_file).create_transaction()
    while True:
        try:
            transaction.clear_range(b"", b"\xff")
            transaction.commit().wait()
            return
        except fdb.FDBError as error:
            transaction.on_error(error).wait()


class BareFdbStore(FdbStore):
    """A FoundationDB store without directory and marks: the keys are those that a test writes."""

    async def _locate(self) -> bytes:
        self._prefix = b"\x15bare"
        self._marks = Marks(b"", Sources().token)
        return self._prefix

    async def _look_up(self) -> None:
        """Stay where it is."""

    def _leave_mark(self, mark: Mark, native: Any) -> None:
        """Leave none."""

    async def _remove_marks(self) -> None:
        """There are none."""


class Fated:
    """The future of a commit that comes out as a fate wants it.

    Args:
        commit: of the commit; None for one that is not to happen.
        code: of the error that it ends with, if it does not end with one of its own.
    """

    def __init__(self, commit: Any, code: int) -> None:
        self._commit = commit
        self._code = code

    @property
    def capi(self) -> Any:
        """The client's functions."""
        return self._commit.capi

    @property
    def fpointer(self) -> Any:
        """The client's future."""
        return self._commit.fpointer

    def is_ready(self) -> bool:
        """Whether it has come out."""
        return self._commit is None or bool(self._commit.is_ready())

    def wait(self) -> None:
        """Raise the error."""
        if self._commit is not None:
            self._commit.wait()
        raise fdb.FDBError(self._code)


class UnsureFdbStore(FdbStore):
    """A FoundationDB store whose commits have the fates that a test wants."""

    def __init__(self, cluster_file: str, fates: Fates, *, settings: Settings, sources: Sources) -> None:
        super().__init__(cluster_file, settings=settings, sources=sources)
        self._fates = fates
        self._marked = b""
        self._late: dict[bytes, Any] = {}

    def _leave_mark(self, mark: Mark, native: Any) -> None:
        self._marked = mark.key
        super()._leave_mark(mark, native)

    def _submit(self, transaction: FdbTransaction) -> tuple[Any, Any]:
        if self._fates.take("lost"):
            return Fated(None, 1021), None
        if self._fates.take("conflict"):
            return Fated(None, 1020), None
        if self._fates.take("late"):
            self._late[self._marked] = transaction.native
            return Fated(None, 1031), None
        commit, stamp = super()._submit(transaction)
        if self._fates.take("unanswered"):
            return Fated(commit, 1021), stamp
        if self._fates.take("timed out"):
            return Fated(commit, 1031), stamp
        self._fates.take("answered")
        return commit, stamp

    async def _find_out(self, mark: Mark, began: int) -> bytes | None:
        await self._fates.others()
        found = await super()._find_out(mark, began)
        if mark.key in self._late:
            done = self._late.pop(mark.key).commit()
            await self._bridge.until(done)
            # It was found out that this commit did not happen, and so it must not.
            with pytest.raises(fdb.FDBError) as caught:
                done.wait()
            assert caught.value.code == 1020
        return found
