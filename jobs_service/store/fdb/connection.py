"""The common parts of a FoundationDB store: the client, the loop, settings, and tasks in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jobs_service.settings import Settings
from jobs_service.sources import Sources
from jobs_service.store.commit_marks import Marks
from jobs_service.store.fdb.attempts import MOST_RETRIES, Attempts
from jobs_service.store.fdb.client import Bridge, Network
from jobs_service.store.fdb.cluster_file import Cluster, FileWatch
from jobs_service.store.fdb.counters import ClusterCounters
from jobs_service.uncancelable import own_task


class Connection:
    """The common base of the parts of a store; the store sets the attributes when it is opened."""

    address: str
    _opened: bool
    _settings: Settings
    _sources: Sources
    _counters: ClusterCounters
    _loop: asyncio.AbstractEventLoop | None
    _executor: ThreadPoolExecutor
    _network: Network
    _bridge: Bridge
    _database: Any
    # The cluster file's content at the opening of the store, None without a file; and the watch on later changes.
    _cluster: Cluster | None
    _file: FileWatch
    # The marks of this store's commits; None until the directory has been found.
    _marks: Marks | None
    _background: set[asyncio.Task[None]]

    async def pause(self, longest: float) -> None:
        """Wait for a random part of so many seconds."""
        await asyncio.sleep(self._sources.uniform(0, longest))

    def _attempts(self) -> Attempts:
        return Attempts(MOST_RETRIES, self.pause, self._count_retry)

    def _count_retry(self) -> None:
        self._counters.retries += 1

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work without a waiting caller; closing the store waits for it."""
        task = own_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _end_background(self) -> None:
        """Wait for the work in the background, and cancel it after a transaction's time limit."""
        if not self._background:
            return
        await asyncio.wait(set(self._background), timeout=self._settings.transaction_timeout)
        for task in set(self._background):
            task.cancel()
        if self._background:
            await asyncio.wait(set(self._background))
