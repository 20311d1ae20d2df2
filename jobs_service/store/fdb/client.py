"""FoundationDB's client library: its start, its errors, and the attempts of one call to it.

The client has one network thread per process, for any number of databases, and cannot be started twice. So there is one
`Network` per process, made when the first store is opened; its futures are bridged into the event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import itertools
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import fdb

from jobs_service.errors import (
    CommitUnknown,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooLarge,
    TransactionTooOld,
    shown,
)
from jobs_service.store.base import Counters

NOT_COMMITTED: Final = 1020
COMMIT_UNKNOWN_RESULT: Final = 1021
TRANSACTION_TIMED_OUT: Final = 1031
DATABASE_LOCKED: Final = 1038
TRANSACTION_TOO_OLD: Final = 1007

_CLASSES: Final[dict[int, type[StoreError]]] = {
    TRANSACTION_TOO_OLD: TransactionTooOld,
    NOT_COMMITTED: TransactionConflict,
    COMMIT_UNKNOWN_RESULT: CommitUnknown,
    TRANSACTION_TIMED_OUT: StoreUnavailable,
    1039: CommitUnknown,  # cluster_version_changed
    2101: TransactionTooLarge,  # transaction_too_large
    2102: TransactionTooLarge,  # key_too_large
    2103: TransactionTooLarge,  # value_too_large
}

_RETRYABLE: Final = frozenset(
    {
        1009,  # future_version
        1037,  # process_behind
        DATABASE_LOCKED,
        1042,  # commit_proxy_memory_limit_exceeded
        1051,  # batch_transaction_throttled
        1078,  # grv_proxy_memory_limit_exceeded
        1213,  # tag_throttled
        1223,  # proxy_tag_throttled
    }
)
"""Retryable codes, beside those with a retryable class."""

_INSTEAD_OF_A_COMMIT: Final = _RETRYABLE | {
    NOT_COMMITTED,
    TRANSACTION_TOO_OLD,
    1036,  # accessed_unreadable
    1225,  # storage_quota_exceeded
}
"""Codes that the client or a proxy answers instead of a commit."""

_CLIENT_REFUSALS: Final = range(2000, 3000)
"""Codes of calls refused by the client itself, such as too large transactions, and missing tenants."""

FIRST_PAUSE: Final = 0.002
LONGEST_PAUSE: Final = 0.5

MOST_RETRIES: Final = 1000
"""So many that the time limit of a transaction ends before, unless its function fails at once, again and again."""

_YOUNG: Final = 0.5
"""Share of the time limit up to which a run's age alone does not explain a too old transaction."""

_STANDSTILL: Final = 1.0
"""Seconds without an answer after which the cluster, not the function, took too long."""

API_VERSION: Final = 730

_CALLBACK: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


# Errors, also of the simulated cluster


def error_of(code: int, description: str) -> StoreError:
    """Return the store's error for a client's error."""
    found = _CLASSES.get(code, StoreError)(f"{description[:1].lower()}{description[1:]} ({code})")
    if code in _RETRYABLE:
        found.retryable = True
    return found


def may_have_committed(code: int) -> bool:
    """Return whether a commit that ended with this error may have happened all the same, or may still happen.

    The client's own predicate `maybe_committed` names 1021 and 1039 only. A commit abandoned at its time limit (1031)
    may have happened as well, and so may a commit with an unknown error. So the lists have the errors that rule a
    commit out.
    """
    return code not in _INSTEAD_OF_A_COMMIT and code not in _CLIENT_REFUSALS


# Calls


class Attempts:
    """The runs of one call's function.

    Args:
        retries: most further runs.
        pause: waits for a random part of the given seconds.
        retried: called at each further run.

    Attributes:
        failure: the failure of the last run; None for the first.
        is_committing: whether a commit is on its way that may still happen.
    """

    __slots__ = ("_left", "_longest", "_longest_wait", "_pause", "_retried", "_too_old", "failure", "is_committing")

    def __init__(self, retries: int, pause: Callable[[float], Awaitable[None]], retried: Callable[[], object]) -> None:
        self._left = retries
        self._pause = pause
        self._retried = retried
        self._longest = FIRST_PAUSE
        self._longest_wait = 0.0
        self._too_old = False
        self.failure: StoreError | None = None
        self.is_committing = False

    def waited(self, seconds: float) -> None:
        """Record the current run's wait for an answer, or for its turn."""
        if seconds > self._longest_wait:
            self._longest_wait = seconds

    async def again(self, failure: StoreError, ran: float = 0.0) -> None:
        """Pause until the function may run again.

        Args:
            failure: the failure of the last run.
            ran: duration of the last run, as a share of its time limit.

        Raises:
            StoreError: the failure, if another run would not help.
        """
        self.failure = failure
        # After a recovery, which may take a tenth of a second, the cluster calls every running transaction too old.
        if isinstance(failure, TransactionTooOld) and ran > _YOUNG:
            # If the cluster answered all the time, the function itself takes too long, and would again. Otherwise the
            # cluster stood still; that excuse counts once.
            if self._too_old or self._longest_wait < _STANDSTILL:
                raise failure
            self._too_old = True
        if not failure.retryable or not self._left:
            raise failure
        self._left -= 1
        self._longest_wait = 0.0
        self._retried()
        await self._pause(self._longest)
        self._longest = min(2 * self._longest, LONGEST_PAUSE)


@dataclass(slots=True)
class ClusterCounters(Counters):
    """Counts since the store was opened, beside the counts of every store.

    Attributes:
        unknown_commits: commits without an outcome from the cluster, so that the store looked for their marks.
        unknown_commits_happened: number of these commits that had happened.
        watches_lost: watches that the client gave up; their waiters read again, after a pause.
        directory_lookups: number of look-ups of the directory.
    """

    unknown_commits: int = 0
    unknown_commits_happened: int = 0
    watches_lost: int = 0
    directory_lookups: int = 0


# The library


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
