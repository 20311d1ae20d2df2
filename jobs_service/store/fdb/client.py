"""FoundationDB's client library: loaded and started once per process, its futures bridged into the event loop.

The client has one network thread per process, for any number of databases, and cannot be started twice. So there is one
`Network` per process, made when the first store is opened.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import fdb

from jobs_service.errors import StoreError, shown
from jobs_service.store.fdb.errors import error_of

API_VERSION: Final = 730

_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class Network:
    """The client of this process.

    Use `Network.started`; there must be only one, and it lives as long as the process.
    """

    _only: Network | None = None
    _lock = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._sinks: dict[int, Callable[[int], object]] = {}
        # The client keeps its address, so it must never be collected.
        self._callback = _CALLBACK(self._on_ready)
        self._stopped = False
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._stopped = True

    @classmethod
    def started(cls, library: str | None) -> Network:
        """Return the client of this process, loading its library and starting its thread on first use.

        Args:
            library: path of libfdb_c; None for the path of its packages.

        Raises:
            StoreError: no library, an old one, or a fork of a process that had started the client.
        """
        with cls._lock:
            if cls._only is None:
                _load(library)
                cls._only = Network()
            cls._only.check()
            return cls._only

    @classmethod
    def check_process(cls) -> None:
        """Raise StoreError in a process that was forked after the start of the client."""
        if cls._only is not None:
            cls._only.check()

    def check(self) -> None:
        """Raise StoreError in a fork of the process that started the client."""
        if os.getpid() != self._pid:
            raise StoreError(
                f"FoundationDB's client was started in process {self._pid}, before a fork, and is of no use in the "
                "child: open fdb: stores after forking, or start processes anew (multiprocessing: spawn)"
            )

    def new_database(self, cluster_file: str) -> Any:
        """Return a new handle of a database.

        `fdb.open` returns the same handle for the same file throughout the process: options that an application sets on
        it would hold for the store as well, and the file would be read only once.

        Args:
            cluster_file: its path; empty for the client's default.

        Raises:
            fdb.FDBError: the client's error.
        """
        impl = fdb.impl
        with impl._network_thread_reentrant_lock:
            if not impl._network_thread:
                impl.init()
        return impl.create_database(cluster_file or None)

    def cancel(self, native: Any) -> None:
        """Cancel one of the client's futures or transactions, unless the client has stopped.

        The client stops when the interpreter ends. If a program does not close its store, abandoned coroutines are
        collected after that; canceling a future then would crash the process.
        """
        if not self._stopped:
            native.cancel()

    def notify(self, future: Any, sink: Callable[[int], object]) -> int:
        """Register `sink` for a call with the returned number when a future is ready.

        The call comes on the client's thread, possibly before this method returns.
        """
        number = next(self._numbers)
        self._sinks[number] = sink
        future.capi.fdb_future_set_callback(future.fpointer, self._callback, number)
        return number

    def _on_ready(self, _: int | None, number: int) -> None:
        self._sinks.pop(number)(number)


class Bridge:
    """Wakes coroutines of one loop when the client's futures are ready, with one wake-up for many futures.

    Args:
        network: the client.
        loop: the loop.
    """

    def __init__(self, network: Network, loop: asyncio.AbstractEventLoop) -> None:
        self._network = network
        self._loop = loop
        self._ready: deque[int] = deque()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._woken = False

    async def until(self, future: Any) -> None:
        """Wait until the future is ready."""
        if future.is_ready():
            return
        waiter = self._loop.create_future()
        number = self._network.notify(future, self._on_ready)
        self._waiting[number] = waiter
        try:
            await waiter
        finally:
            del self._waiting[number]

    def _on_ready(self, number: int) -> None:
        self._ready.append(number)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:  # The loop was closed; nobody waits any more.
                self._ready.clear()

    def _wake(self) -> None:
        self._woken = False
        ready = self._ready
        while ready:
            waiter = self._waiting.get(ready.popleft())
            if waiter is not None and not waiter.done():
                waiter.set_result(None)


def translated(error: Any) -> StoreError:
    """Return the client's error (an fdb.FDBError) as a store's error."""
    description = error.description
    text = description.decode() if isinstance(description, bytes) else str(description)
    return error_of(error.code, text)


def _load(library: str | None) -> None:
    """Load the client library and choose the version of its interface."""
    if fdb.is_api_version_selected():
        chosen = fdb.get_api_version()
        if chosen < API_VERSION:
            raise StoreError(
                f"this program has chosen version {chosen} of FoundationDB's interface with fdb.api_version(); "
                f"jobs_service needs {API_VERSION} or newer"
            )
        return
    if library is not None:
        try:
            # The binding asks for the library by name, and then gets the one of that name that is there already.
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise StoreError(
                f"JOBS_SERVICE_FDB_LIBRARY={shown(library)}: FoundationDB's client library cannot be loaded from "
                f"there: {error}"
            ) from None
    try:
        fdb.api_version(API_VERSION)
    except Exception as error:
        raise StoreError(
            "FoundationDB's client library (libfdb_c) 7.3 or newer cannot be loaded: install the package "
            f"foundationdb-clients, or name the library in JOBS_SERVICE_FDB_LIBRARY ({error})"
        ) from None
