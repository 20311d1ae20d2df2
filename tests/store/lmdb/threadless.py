"""An embedded store without threads: what the writer's thread does is done at once, by whoever asks."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any, Final

from jobs_service.settings import Settings
from jobs_service.store.base import TransactionFunction
from jobs_service.store.embedded import EmbeddedStore, ThreadAnswer, ThreadCall
from jobs_service.store.lmdb import LmdbStore
from jobs_service.store.sqlite import SqliteStore
from tests.contract.support import END

_LOOP: Final = asyncio.new_event_loop()
_LOOP.close()


class _Threadless(EmbeddedStore):
    """A store that is open as soon as it is made.

    Args:
        path: its directory, or file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, settings=Settings(durable=False))
        self._engine = self.engine(path, self.address, self.location, self._settings, self._at)
        self._engine.open()

    def commit(self, function: TransactionFunction[Any]) -> bytes | None:
        """Run a function in a transaction, commit, and return its versionstamp."""
        answers: list[ThreadAnswer] = []
        unheard: asyncio.Future[Any] = asyncio.Future(loop=_LOOP)
        self._commit(self._engine, deque([ThreadCall(function, unheard, 0.0, None)]), answers)
        [answer] = answers
        if answer.error is not None:
            raise answer.error
        return answer.stamp

    def end(self) -> None:
        """Close it."""
        self._engine.close()

    def contents(self) -> dict[bytes, bytes]:
        """Return what is in it, but for its own."""
        state = self._engine.begin()
        try:
            return dict(state.scan(b"", END, False))
        finally:
            state.end()


class ThreadlessStore(_Threadless, LmdbStore):
    """One in a directory."""


class ThreadlessSqliteStore(_Threadless, SqliteStore):
    """One in a SQLite file."""
