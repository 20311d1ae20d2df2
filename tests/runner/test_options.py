"""The options of a handler: their defaults, their ranges, and which of them can change."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from jobs_service import JobsService
from jobs_service.errors import InvalidSettings, JobsError
from jobs_service.model import RunningJob
from jobs_service.runner.options import HandlerKeywords, HandlerOptions

NUMBERS = {
    "slots": (0, 100_000),
    "max_attempts": (1, 65_535),
    "timeout": (0.001, 1e9),
    "health_threshold": (0, 1e9),
    "backoff": (0, 86_400),
    "jitter": (0, 1),
    "max_history": (1, 100),
    "interval": (0.001, 86_400),
    "max_churn": (0, 100_000),
    "grace": (0, 86_400),
    "time_limit": (0.001, 1e9),
    "keep": (0, 1e9),
    "keep_failed": (0, 1e9),
    "memory_limit": (1_000_000, 1 << 50),
}
OTHERS = {"continuous", "fifo", "redact", "isolated"}
OPTIONAL = {"max_attempts", "time_limit", "keep", "keep_failed", "memory_limit"}


def option(name: str, value: Any) -> Any:
    """Return what an option is when it was given a value."""
    return getattr(HandlerOptions(**{name: value}), name)


def complaint(**options: Any) -> str:
    """Return what is wrong with options, checked to be one line."""
    with pytest.raises(InvalidSettings) as caught:
        HandlerOptions(**options)
    assert isinstance(caught.value, JobsError)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def test_the_defaults_are_those_of_couchdb_and_of_the_documentation() -> None:
    assert dataclasses.asdict(HandlerOptions()) == {
        "slots": 10,
        "max_attempts": 10,
        "timeout": 60,
        "health_threshold": 120,
        "backoff": 30,
        "jitter": 0.1,
        "max_history": 20,
        "continuous": False,
        "fifo": False,
        "interval": 60,
        "max_churn": 20,
        "grace": 10,
        "time_limit": None,
        "keep": 7 * 86_400,
        "keep_failed": None,
        "redact": None,
        "isolated": False,
        "memory_limit": None,
    }
    jobs = JobsService("memory:")

    @jobs.every(10)
    async def tick() -> None:
        """Nothing."""

    @jobs.every(10, keep=None)
    async def kept() -> None:
        """Nothing."""

    assert (tick.options.keep, kept.options.keep) == (86_400, None)


def test_every_option_that_is_a_number_is_in_these_tests_and_a_type_checker_knows_each() -> None:
    assert {*HandlerKeywords.__annotations__} == {*NUMBERS, *OTHERS}
    assert {field.name for field in dataclasses.fields(HandlerOptions)} == {*NUMBERS, *OTHERS}


@pytest.mark.parametrize("name", NUMBERS)
def test_both_ends_of_a_range_are_allowed_and_what_is_beyond_is_not(name: str) -> None:
    least, most = NUMBERS[name]
    for value in (least, most):
        assert option(name, value) == value
    for value in (least - 1, most + 1, -math.inf, math.inf, math.nan, 10**400):
        message = complaint(**{name: value})
        assert message.startswith(f"option {name}=")
        assert ": allowed " in message
        assert f" {most:.0f}" in message


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [True, False, "3x", b"3", [3], 3j], ids=repr)
def test_what_is_no_number_is_refused_and_a_bool_is_none(name: str, value: Any) -> None:
    assert complaint(**{name: value}).startswith(f"option {name}={value!r}: allowed ")


def test_a_number_of_bytes_may_be_text() -> None:
    texts = {"500000000": 500_000_000, "500M": 500_000_000, "2GB": 2_000_000_000, "1000k": 1_000_000}
    assert {text: option("memory_limit", text) for text in texts} == texts
    for text in ("500 M", "0.5G", "-1G", "1k", "9" * 30, "1T"):
        assert "such text as 500M" in complaint(memory_limit=text)


@pytest.mark.parametrize("name", NUMBERS)
def test_none_is_allowed_where_it_has_a_meaning(name: str) -> None:
    if name in OPTIONAL:
        assert option(name, None) is None
    else:
        assert complaint(**{name: None}).startswith(f"option {name}=None: allowed ")


def test_continuous_is_a_bool_or_a_function_of_the_job() -> None:
    def endless(job: RunningJob) -> bool:
        return bool(job.data)

    assert HandlerOptions(continuous=True).continuous is True
    assert HandlerOptions(continuous=endless).continuous is endless

    async def asynchronous(job: RunningJob) -> bool:
        return False

    for value in (1, None, "yes", bool, asynchronous):
        assert complaint(continuous=value).startswith("option continuous=")


@pytest.mark.parametrize("name", ["fifo", "isolated"])
def test_fifo_and_isolated_are_bools(name: str) -> None:
    assert option(name, True) is True
    for value in (1, 0, None, "yes", bool, [True]):
        assert complaint(**{name: value}).endswith("allowed are True and False")
        assert complaint(**{name: value}).startswith(f"option {name}=")


def test_four_options_can_change_and_the_others_stay() -> None:
    before = HandlerOptions(slots=1, backoff=5, keep=60)
    after = before.with_changes(slots=3, max_churn=0, interval=5, max_history=7)
    assert after == HandlerOptions(slots=3, max_churn=0, interval=5, max_history=7, backoff=5, keep=60)
    assert before == HandlerOptions(slots=1, backoff=5, keep=60)
    assert before.with_changes() == before


@pytest.mark.parametrize(
    "name",
    sorted({*NUMBERS, *OTHERS, "nonsense"} - {"slots", "max_churn", "interval", "max_history"}),
)
def test_no_other_option_can_change(name: str) -> None:
    changes: Any = {name: 1}
    with pytest.raises(InvalidSettings, match=rf"option {name}=1: it cannot change .* only slots, max_churn, interval"):
        HandlerOptions().with_changes(**changes)
