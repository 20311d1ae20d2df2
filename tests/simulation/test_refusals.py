"""That errors count, also of what nobody notes as a call: an error for which there is no reason is a violation."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service import InvalidJob, JobsError, JobsService, JobTooLarge, NoTypeTimeout, RecordDamaged, StoreFull
from jobs_service.errors import StoreDamaged, StoreUnavailable, TransactionTooOld
from jobs_service.testing import Plan
from tests.simulation.run import simulate

SEED = 3
"""One in whose calm run somebody clears a type."""


def violations(monkeypatch: pytest.MonkeyPatch, error: JobsError) -> list[str]:
    """Return what is wrong with a run in calm weather in which nobody can clear a type."""

    async def refuse(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(JobsService, "clear_type_timeout", refuse)
    return simulate(Plan(SEED), profile="calm", workloads=["type keepers"]).violations


@pytest.mark.parametrize(
    "error",
    [
        TransactionTooOld("as ever"),
        StoreUnavailable("as ever"),
        StoreFull("as ever"),
        StoreDamaged("as ever"),
        RecordDamaged("as ever"),
        JobTooLarge("as ever"),
        InvalidJob("as ever"),
        JobsError("as ever"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_without_a_reason_is_a_violation(monkeypatch: pytest.MonkeyPatch, error: JobsError) -> None:
    found = violations(monkeypatch, error)
    assert found
    assert all(each.startswith("error: the step of type keepers in ") for each in found), found


def test_an_error_that_may_be_true_of_a_type_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert violations(monkeypatch, NoTypeTimeout("as ever")) == []
