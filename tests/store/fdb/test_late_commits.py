"""Commits whose callers have gone before they were answered, over a client that answers when a test wants."""

from __future__ import annotations

import asyncio
from typing import Any

import fdb
import pytest

from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.fdb.client import Network
from jobs_service.store.fdb.cluster_file import FileWatch
from tests.contract.support import number, patience
from tests.fdb_stores import BareFdbStore
from tests.stores import plain_settings

NOT_COMMITTED = 1020


class Reply:
    """A future of the client.

    Attributes:
        value: what is read from it.
        capi, fpointer: the client's functions, and what they are called with.
    """

    def __init__(self, value: bytes | None = None, *, ready: bool = True) -> None:
        self.value = value
        self.capi = self.fpointer = self
        self._ready = ready
        self._error: Exception | None = None
        self._waiting: list[tuple[Any, int]] = []

    def fdb_future_set_callback(self, _: object, callback: Any, number: int) -> None:
        """Note who waits."""
        self._waiting.append((callback, number))

    def answer(self, error: Exception | None = None) -> None:
        """Come out, and wake who waits."""
        self._ready, self._error = True, error
        for callback, each in self._waiting:
            callback(None, each)

    def is_ready(self) -> bool:
        """Whether it has come out."""
        return self._ready

    def wait(self) -> None:
        """Raise the error, if there is one."""
        if self._error is not None:
            raise self._error


class Client:
    """The client's database, and its only transaction.

    Attributes:
        sent: set when a commit is on its way.
        committed: the future of the commit.
        snapshot: of the transaction.
    """

    def __init__(self) -> None:
        self.sent = asyncio.Event()
        self.committed = Reply(ready=False)
        self.snapshot = self

    def create_transaction(self) -> Client:
        """Begin the transaction."""
        return self

    def get(self, key: bytes) -> Reply:
        """There is nothing."""
        return Reply()

    def get_read_version(self) -> Reply:
        """Nobody looks at it."""
        return Reply()

    def get_versionstamp(self) -> Reply:
        """It comes with the commit."""
        return Reply(bytes(10))

    def add(self, key: bytes, operand: bytes) -> None:
        """It is not looked at."""

    def commit(self) -> Reply:
        """Send the commit on its way."""
        self.sent.set()
        return self.committed


class LateStore(BareFdbStore):
    """A store over this client, of which only the library is loaded."""

    def __init__(self, client: Client) -> None:
        super().__init__("", settings=plain_settings(), sources=Sources(0))
        self._client = client

    def _connect(self) -> Network:
        self._cluster, self._file = None, FileWatch("/nowhere")
        self._database = self._client
        return Network.started(None)


@pytest.mark.parametrize("happens", [True, False])
async def test_who_has_gone_before_its_commit_was_answered_is_told_of_one_that_happened(happens: bool) -> None:
    told: list[str] = []

    async def count(transaction: Transaction) -> str:
        transaction.add(b"count", number(1))
        return "counted"

    client = Client()
    store = LateStore(client)
    await store.open()
    call = asyncio.create_task(store.transact(count, abandoned=told.append))
    async with patience():
        await client.sent.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert told == []
        client.committed.answer(None if happens else fdb.FDBError(NOT_COMMITTED))
        await store.close()
    assert told == (["counted"] if happens else [])
