"""Durations as people type them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobs_service import JobsError, JobTransaction, Retry, Settings, Snooze, durations
from jobs_service.durations import Duration
from jobs_service.model.type_state import Retention
from jobs_service.replication.options import ReplicationOptions
from jobs_service.runner.commands import Command
from jobs_service.runner.options import handler_options
from jobs_service.runner.schedule import Every
from tests.runner.support import TYPE, now, opened
from tests.virtual_time import EPOCH, in_virtual_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("90", 90.0),
        ("1.5", 1.5),
        ("30s", 30.0),
        ("2.5s", 2.5),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("2d", 172_800.0),
        ("1d1h1m1s", 90_061.0),
    ],
)
def test_a_duration_that_was_typed_is_read(text: str, seconds: float) -> None:
    assert durations.seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "1x", "-5", "1m1h", "soon", "<b>"])
def test_what_is_no_duration_says_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write 90, 30s, 10m"):
        durations.parsed(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (2.5, "2.5s"), (60, "1m"), (5400, "1h30m"), (86_400, "1d"), (90_061, "1d1h1m1s")]
)
def test_a_duration_is_shown_in_the_units_in_which_it_is_typed(seconds: float, text: str) -> None:
    assert durations.typed(seconds) == text


SAME: list[Duration] = [90, 90.0, timedelta(seconds=90), "90", "90s", "1m30s"]


@pytest.mark.parametrize("given", SAME)
def test_every_kind_of_duration_is_the_same(given: Duration) -> None:
    assert durations.seconds_of(given) == 90.0
    assert durations.plain(given) == 90.0


def replicating(**options: Any) -> ReplicationOptions:
    """Return the options of some replication."""
    return ReplicationOptions(source="http://a/b", target="http://a/c", **options)


ARGUMENTS: dict[str, Callable[[Any], object]] = {
    "Snooze": lambda given: Snooze(given).seconds,
    "Retry": lambda given: Retry(given).after,
    "Command": lambda given: Command(("ls",), time_limit=given).time_limit,
    "every": lambda given: Every(given).seconds,
    "settings": lambda given: Settings(restart_period=given).restart_period,
    "a handler's settings": lambda given: Settings(handlers={"t": {"interval": given}}).handlers["t"].interval,
    "replication": lambda given: replicating(checkpoint_interval=given).checkpoint_interval,
    **{
        f"option {name}": lambda given, name=name: getattr(handler_options({name: given}), name)  # type: ignore[misc]
        for name in ["timeout", "health_threshold", "backoff", "interval", "grace", "time_limit", "keep", "keep_failed"]
    },
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_every_kind_of_duration_is_taken(what: str) -> None:
    assert [ARGUMENTS[what](given) for given in SAME] == [90.0] * len(SAME)


@pytest.mark.parametrize("what", ARGUMENTS)
@pytest.mark.parametrize("given", ["soon", True, -1, timedelta(seconds=-1), "-1s"])
def test_what_is_no_duration_is_refused_in_one_line_that_says_what_to_write(what: str, given: Any) -> None:
    with pytest.raises(JobsError) as caught:
        ARGUMENTS[what](given)
    assert len(str(caught.value).splitlines()) == 1
    if what != "replication" and not (what.endswith("settings") and given != "soon"):
        assert "'30s', '10m', '1h30m', '2d' or a timedelta" in str(caught.value)


@pytest.mark.parametrize("given", SAME)
@in_virtual_time
async def test_a_service_takes_every_kind_of_duration(given: Duration) -> None:
    async with opened() as jobs:
        await jobs.set_type_timeout(TYPE, given)
        await jobs.set_retention(TYPE, keep=given, keep_failed=given)
        assert await jobs.get_type_timeout(TYPE) == 90
        assert await jobs.get_retention(TYPE) == Retention(90, 90)

        async def set_all(tx: JobTransaction) -> None:
            await tx.set_type_timeout(TYPE, given)
            await tx.set_retention(TYPE, keep=given)
            job = await tx.enqueue(TYPE, {}, id="tx", delay=given, time_limit=given)
            assert job.time_limit == 90

        await jobs.transact(set_all)
        job = await jobs.enqueue(TYPE, {}, id="later", delay=given, time_limit=given)
        assert job.run_at is not None
        assert (round(job.run_at.timestamp() - EPOCH - now()), job.time_limit) == (90, 90)
        await jobs.resubmit(TYPE, "tx", run_at=EPOCH + 10**6)
        for wait in (
            lambda: jobs.wait(TYPE, "later", "finished", timeout=given),
            lambda: jobs.result(TYPE, "later", timeout=given),
        ):
            began = now()
            with pytest.raises(TimeoutError, match="within 90"):
                await wait()
            assert now() - began == pytest.approx(90)
        running = await jobs.accept(TYPE, timeout=given)
        assert running is not None
        with pytest.raises(TimeoutError, match="within 90"):
            await jobs.stop_and_remove(TYPE, "later", timeout=given)
        assert await jobs.accept(TYPE, timeout=given) is None
        assert await jobs.accept_many(TYPE, 2, timeout=given) == []
