"""Errors that are copied, or that another process raises: they say the same as before."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from jobs_service import Discard, JobError, JobFailed, JobNotFound, JobsError, Retry, Snooze


class Busy(JobsError):
    """An error of an application's, with an __init__ of its own."""

    def __init__(self, machine: str, seconds: float) -> None:
        super().__init__(f"{machine} is busy", type="work", id=machine)
        self.seconds = seconds


ERRORS = [
    Retry(),
    Retry(5, "the printer is busy"),
    Snooze(3600),
    Discard("no such printer"),
    JobNotFound("there is no job", type=("a", 1), id=b"\x00"),
    JobFailed("it failed", type="a", id="b", outcome="canceled", error=JobError("ValueError", "no", "where")),
    Busy("m1", 5.0),
]


def pickled(error: JobsError) -> JobsError:
    found = pickle.loads(pickle.dumps(error))
    assert isinstance(found, JobsError)
    return found


@pytest.mark.parametrize("again", [copy.copy, pickled])
@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_that_is_copied_or_pickled_is_the_same(
    error: JobsError, again: Callable[[JobsError], JobsError]
) -> None:
    error.add_note("in a test")
    found = again(error)
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
