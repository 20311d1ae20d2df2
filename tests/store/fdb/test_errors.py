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

MAYBE = (1021, 1022, 1025, 1030, 1031, 1039, 1101, 1510, 4000, 4100, 1999)
"""The last one is a code that nobody has heard of."""
NOT = (1007, 1009, 1020, 1036, 1037, 1038, 1042, 1051, 1078, 1213, 1223, 1225, 2017, 2101, 2131)


@pytest.mark.parametrize("code", MAYBE + NOT)
def test_after_which_errors_a_commit_may_have_happened(code: int) -> None:
    assert may_have_committed(code) == (code in MAYBE)


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
