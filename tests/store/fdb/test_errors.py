"""What FoundationDB's error codes mean: above all, after which errors of a commit it may have happened."""

from __future__ import annotations

import pytest

from jobs_service.errors import (
    CommitUnknown,
    StoreError,
    StoreUnavailable,
    TransactionConflict,
    TransactionTooLarge,
    TransactionTooOld,
)
from jobs_service.store.fdb.client import error_of, may_have_committed

MAYBE = {
    "commit_unknown_result": 1021,
    "commit_unknown_result_fatal": 1022,
    "transaction_cancelled": 1025,
    "request_maybe_delivered": 1030,
    "transaction_timed_out": 1031,
    "cluster_version_changed": 1039,
    "operation_cancelled": 1101,
    "io_error": 1510,
    "unknown_error": 4000,
    "internal_error": 4100,
    "one that nobody has heard of": 1999,
}
NOT = {
    "transaction_too_old": 1007,
    "future_version": 1009,
    "not_committed": 1020,
    "accessed_unreadable": 1036,
    "process_behind": 1037,
    "database_locked": 1038,
    "commit_proxy_memory_limit_exceeded": 1042,
    "batch_transaction_throttled": 1051,
    "grv_proxy_memory_limit_exceeded": 1078,
    "tag_throttled": 1213,
    "proxy_tag_throttled": 1223,
    "storage_quota_exceeded": 1225,
    "used_during_commit": 2017,
    "transaction_too_large": 2101,
    "tenant_not_found": 2131,
}


@pytest.mark.parametrize("code", MAYBE.values(), ids=MAYBE)
def test_after_this_error_a_commit_may_have_happened(code: int) -> None:
    assert may_have_committed(code)


@pytest.mark.parametrize("code", NOT.values(), ids=NOT)
def test_after_this_error_a_commit_has_not_happened(code: int) -> None:
    assert not may_have_committed(code)


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (1007, TransactionTooOld, True),
        (1009, StoreError, True),
        (1020, TransactionConflict, True),
        (1021, CommitUnknown, True),
        (1031, StoreUnavailable, True),
        (1036, StoreError, False),
        (1039, CommitUnknown, True),
        (1213, StoreError, True),
        (2101, TransactionTooLarge, False),
        (4100, StoreError, False),
    ],
)
def test_an_error_of_the_client_is_one_of_ours_with_its_code(code: int, kind: type, retryable: bool) -> None:
    error = error_of(code, "Something went wrong")
    assert type(error) is kind
    assert error.retryable is retryable
    assert str(error) == f"something went wrong ({code})"
