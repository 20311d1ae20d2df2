"""The page of errors: every public error, what it is a kind of, and whether the same call may succeed later."""

from __future__ import annotations

import jobs_service
from jobs_service import JobsError, StoreError
from tests.docs.pages import read, rows, section

ERRORS = {
    name: kind
    for name in jobs_service.__all__
    if isinstance(kind := getattr(jobs_service, name), type) and issubclass(kind, JobsError) and kind is not JobsError
}
CALLS = rows(section("docs/errors.md", "What calls raise"), "error")
HANDLERS = rows(section("docs/errors.md", "What handlers raise"), "error")


def test_every_public_error_is_in_a_table() -> None:
    assert sorted(row[0].strip("`") for row in [*CALLS, *HANDLERS]) == sorted(ERRORS)
    assert "`JobsError`" in read("docs/errors.md")


def test_each_is_what_the_table_says_that_it_is() -> None:
    for name, parent, *_ in [*CALLS, *HANDLERS]:
        assert ERRORS[name.strip("`")].__mro__[1].__name__ == parent.strip("`")


def test_those_that_may_pass_are_marked() -> None:
    for name, _, again, _ in CALLS:
        kind = ERRORS[name.strip("`")]
        assert again == ("yes" if issubclass(kind, StoreError) and kind.retryable else "no")
