"""An embedded store without threads: what the writer's thread does is done at once, by whoever asks."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from typing import Any, Final

from jobs_service.settings import Settings
from jobs_service.store.base import TransactionFunction
from jobs_service.store.lmdb import LmdbStore
from jobs_service.store.lmdb.environment import StoreRoom, open_environment
from jobs_service.store.lmdb.process_locks import FileUse
from jobs_service.store.lmdb.threads import MemoryMap, ThreadAnswer, ThreadCall
from tests.contract.support import END

_LOOP: Final = asyncio.new_event_loop()
_LOOP.close()


class ThreadlessStore(LmdbStore):
    """The store, open as soon as it is made.

    Args:
        path: its directory.
    """

    def __init__(self, path: Path) -> None:
        settings = Settings(durable=False)
        super().__init__(path, settings=settings)
        self._use = FileUse(path, self.location)
        self.environment = open_environment(path, settings, self._use)
        self._map = MemoryMap(self.environment, self._has_grown, self._cannot_grow)
        self._room = StoreRoom(path, self.location, settings.lmdb_map_size)

    def commit(self, function: TransactionFunction[Any]) -> bytes | None:
        """Run a function in a transaction, commit, and return its versionstamp."""
        answers: list[ThreadAnswer] = []
        unheard: asyncio.Future[Any] = asyncio.Future(loop=_LOOP)
        self._commit(self.environment, deque([ThreadCall(function, unheard, 0.0, None)]), answers)
        [answer] = answers
        if answer.error is not None:
            raise answer.error
        return answer.stamp

    def end(self) -> None:
        """Close it."""
        self.environment.close()
        self._use.end()

    def contents(self) -> dict[bytes, bytes]:
        """Return what is in it, but for its own."""
        with self.environment.begin() as transaction:
            return {key: value for key, value in transaction.cursor() if key < END}
