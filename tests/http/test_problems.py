"""Errors as problem details, and back to the same errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jobs_service
from jobs_service import (
    CommandFailed,
    Discard,
    InvalidJob,
    JobError,
    JobFailed,
    JobsError,
    Retry,
    Snooze,
    errors,
    json_types,
)
from jobs_service.http import problems
from jobs_service.http.problems import KINDS
from jobs_service.runner.commands import CommandResult

PUBLIC = [
    kind
    for name in jobs_service.__all__
    if isinstance(kind := getattr(jobs_service, name), type) and issubclass(kind, JobsError)
]
KNOWN = {*PUBLIC, *(kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, JobsError))}
SPECIAL: dict[type[JobsError], JobsError] = {
    CommandFailed: CommandFailed("exit code 3", result=CommandResult(3, None, "out", "err", True, 1.5)),
    JobFailed: JobFailed("job failed", type="t", id="i", outcome="canceled", error=JobError("E", "m", "t")),
    Retry: Retry(after=5, message="later"),
    Snooze: Snooze(7),
    Discard: Discard("no such address"),
}


def again(error: JobsError) -> JobsError:
    """Return the error after its way over the wire."""
    return problems.error_of(json_types.loads(json_types.dumps(problems.problem(error))))


def example(kind: type[JobsError]) -> JobsError:
    return SPECIAL.get(kind) or kind("what was wrong", type=("t", 1), id=b"\x00")


@pytest.mark.parametrize("kind", sorted(KNOWN, key=str))
def test_every_error_comes_back_as_it_was(kind: type[JobsError]) -> None:
    error = example(kind)
    found = again(error)
    assert type(found) is kind
    assert str(found) == str(error)
    assert found.args == error.args
    assert vars(found) == vars(error)
    assert getattr(found, "retryable", None) == getattr(error, "retryable", None)


@given(
    st.text(), st.none() | st.text(st.characters(codec="utf-8")) | st.binary(), st.none() | st.binary() | st.integers()
)
def test_text_and_job_come_back_whatever_they_are(text: str, id: Any, type: Any) -> None:
    error = InvalidJob(text or "x", type=type, id=id)
    found = again(error)
    assert (str(found), found.type, found.id) == (text or "x", type, id)


def test_each_kind_has_a_type_of_its_own_that_says_its_class() -> None:
    assert {*problems.ERRORS.values()} == KNOWN
    assert len({kind.slug for kind in KNOWN}) == len(KNOWN)
    for kind in KNOWN:
        assert problems.title_of(kind).endswith(".")
        assert 400 <= kind.http_status < 600


@pytest.mark.parametrize("slug", [*KINDS, "of-a-later-version"])
def test_a_refusal_of_the_server_is_the_error_that_comes_nearest(slug: str) -> None:
    found = problems.error_of({"type": f"/problems/{slug}", "title": "Title.", "status": 400, "detail": "why"})
    assert type(found) is (KINDS[slug].error if slug in KINDS else JobsError)
    assert str(found) == "why"
