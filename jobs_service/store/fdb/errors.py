"""FoundationDB's error codes as errors of the store; also used by the simulated cluster."""

from __future__ import annotations

from typing import Final

from jobs_service.errors import (
    CommitUnknown,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooLarge,
    TransactionTooOld,
)

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
    2101: TransactionTooLarge,
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
