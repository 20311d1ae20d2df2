"""The faults of the simulated cluster, and the errors in its answers."""

from __future__ import annotations

from typing import Final

from jobs_service.errors import StoreError
from jobs_service.store.fdb.errors import TRANSACTION_TIMED_OUT

FAULTS: Final = {
    "conflict": "a commit fails although nothing it has read was changed",
    "commit_lost": "a commit does not happen, and its outcome is unknown",
    "commit_unknown": "a commit happens, and its outcome is unknown",
    "commit_timed_out": "a commit is told that its time is up; it happens all the same, at once or later, or does not",
    "too_old": "a transaction is told that it is too old",
    "stale": "a transaction sees a state of some time ago, but none from before it was begun",
    "suspend": "a transaction function is suspended at a read while others run",
    "slow_read": "a read takes up to 2 s, rarely longer than a transaction may",
    "slow_commit": "a commit takes up to 2 s to happen, rarely longer than its caller waits",
    "slow_answer": "a commit has happened up to 2 s before its caller is told, rarely longer than the caller waits",
    "request_lost": "a commit that was under way when its process died does not happen",
    "watch_late": "a watch fires up to 5 s late",
    "watch_spurious": "a watch fires for nothing",
    "watch_lost": "a watch is lost within a minute, mostly soon, with an error",
    "clone": "a process that opens its connection is a clone of another: it has the same memory",
    "options": "an application sets a short time limit and other options on its own handle of the cluster",
    "sweep": "a connection removes the marks that are old",
}
"""The kinds of fault that the cluster draws, with a description of each."""

SLOW: Final = 2.0
"""The longest delay of slow requests in seconds, apart from rare ones that exceed every time limit."""


class ClientError(Exception):
    """An error as FoundationDB's client library would raise it.

    Attributes:
        code: the library's number of the error.
        description: the library's text.
    """

    def __init__(self, code: int, description: str) -> None:
        super().__init__(f"{description} ({code})")
        self.code = code
        self.description = description


def timed_out() -> ClientError:
    """Return the error for a transaction that exceeds its time limit."""
    return ClientError(TRANSACTION_TIMED_OUT, "Operation aborted because the transaction timed out")


def lost_with_its_transaction() -> StoreError:
    """Return the error for a watch of a transaction that did not commit."""
    return StoreError("the watch was lost: its transaction did not commit")
