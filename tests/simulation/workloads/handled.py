"""What must become of a job that a handler runs: README's table of what a handler does, and of its options, as a model.

It knows what was accepted, what the handler did and what it was told, and nothing of the service.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from jobs_service import Discard, JobId, JobType, Outcome, Retry, RunningJob, Snooze
from jobs_service.model import UNSET
from jobs_service.testing import Process
from tests import reader
from tests.simulation.model_job import ModelJob, Said

TOLERANCE: Final = 1e-6
MOMENT: Final = 0.05
"""Seconds within which what is to happen at a time happens, where nothing takes time."""

_MOST_DOUBLINGS: Final = 10
_MOST_CRASHES: Final = 15

FINAL: Final = frozenset({"discard", "object"})
"""The fates after which a job has failed for good."""

OWN: Final = frozenset({"finish", "release"})
"""The fates of handlers that end their jobs themselves."""


class Accepted(NamedTuple):
    """A job as it was given to a process.

    Attributes:
        process: whose.
        type, id: of the job.
        lock: with which it was accepted.
        job: what it was then.
        at: when, on the loop's clock, seconds.
        now: when, by the process's clock, seconds since the epoch.
    """

    process: Process
    type: JobType
    id: JobId
    lock: bytes
    job: ModelJob
    at: float
    now: float

    @property
    def limits(self) -> tuple[int | None, float | None]:
        """The attempts, and the seconds of a run, that hold for this job; None for those of its handler."""
        limits = reader.value_of(self.job.notes.limits or b"")
        return (None, None) if limits is None else (limits[0], limits[1])

    def most_attempts(self, options: Mapping[str, Any]) -> int | None:
        """Return how many runs may fail."""
        most: int | None = self.limits[0] or options["max_attempts"]
        return most

    def time_limit(self, options: Mapping[str, Any]) -> float | None:
        """Return how many seconds one run may take."""
        limit: float | None = self.limits[1] or options.get("time_limit")
        return limit

    @property
    def is_order(self) -> bool:
        """Whether its data are what its handler takes."""
        data = reader.value_of(self.job.data)
        return isinstance(data, dict) and "call" in data


@dataclass(slots=True)
class Held:
    """One call of a handler.

    Attributes:
        process: where.
        job: as it was given to the handler.
        accepted: as it was accepted.
        fate: what the handler does.
        began: when, on the loop's clock, seconds.
        pauses: how often its process had stood still before.
        continuous: whether it may be asked to give up its slot.
        asked: when it was first canceled; None as long as it was not.
        why: what it was told then.
        over: when it ended; None as long as it runs.
        returned: what it has returned; UNSET if nothing.
        failed: the process's wall-clock time when it raised; None if it did not.
        error: what it raised.
        ended_job: when it was answered that it has ended its job itself; None if it was not.
    """

    process: Process
    job: RunningJob
    accepted: Accepted
    fate: str
    began: float
    pauses: int
    continuous: bool = False
    asked: float | None = None
    why: str = ""
    over: float | None = None
    returned: Any = UNSET
    failed: float | None = None
    error: BaseException | None = None
    ended_job: float | None = None

    @property
    def has_ended_job(self) -> bool:
        """Whether it was answered that it has ended its job itself: it need not be told of it any more."""
        return self.ended_job is not None

    @property
    def was_paused(self) -> bool:
        """Whether its process has stood still since it began."""
        return self.process.pauses != self.pauses

    def was_healthy(self, accepted: float, options: Mapping[str, Any]) -> bool:
        """Whether it raised after so long that the attempts of its job, a continuous one, were counted anew."""
        ran = None if self.failed is None else self.failed - accepted
        return self.continuous and ran is not None and ran >= options["health_threshold"] - TOLERANCE

    def is_late(self, limit: float | None, now: float) -> bool:
        """Whether its time limit was over before anybody asked it to end, or it ended."""
        until = min(each for each in (self.asked, self.over, now) if each is not None)
        return limit is not None and until - self.began >= limit - TOLERANCE

    def outlasted(self, grace: float) -> bool:
        """Whether it ended only after the grace that it was given."""
        return self.asked is not None and self.over is not None and self.over - self.asked >= grace - TOLERANCE

    def has_gone_beyond(self, limit: float | None) -> bool:
        """Whether it ended well after its time limit, and was not asked to end before that for another reason."""
        if limit is None or self.over is None or self.was_paused or self.over - self.began < limit + MOMENT:
            return False
        return self.asked is None or self.asked - self.began >= limit - TOLERANCE


def wrong_finish(
    accepted: Accepted, held: Held | None, options: Mapping[str, Any], outcome: Outcome, said: Said, canceled: bool
) -> Iterator[str]:
    """Yield what is wrong with the end of a run after which the job has finished.

    Args:
        accepted: the job.
        held: the call of its handler; None if there was none.
        options: of the handler.
        outcome, said: what was written.
        canceled: whether somebody has asked for its removal.
    """
    if outcome is Outcome.CANCELED:
        if not canceled:
            yield "canceled: nobody has asked for the removal of {}"
        return
    if held is not None and held.fate == "finish" and outcome is Outcome.SUCCEEDED:
        if held.returned is UNSET and reader.value_of(said.result or b"") != {"with": "an effect"}:
            yield f"result: {{}} was finished with {said.result!r}"
        return
    if outcome is Outcome.SUCCEEDED:
        yield from _wrong_success(accepted, held, options, said, canceled)
    else:
        yield from _wrong_failure(accepted, held, options, said)


def _wrong_success(
    accepted: Accepted, held: Held | None, options: Mapping[str, Any], said: Said, canceled: bool
) -> Iterator[str]:
    if held is None or held.returned is UNSET:
        yield "ended: {} was finished, but its handler has not returned"
        return
    if said.result is None or reader.value_of(said.result) != json.loads(json.dumps(held.returned)):
        yield f"result: of {{}} {said.result!r} is kept, but its handler has returned {held.returned!r}"
    # What was removed meanwhile ends as canceled, whatever its handler says in the end.
    if not canceled and held.has_gone_beyond(accepted.time_limit(options)):
        yield f"overtime: {{}} has succeeded, but took longer than {accepted.time_limit(options)} s"


def _wrong_failure(accepted: Accepted, held: Held | None, options: Mapping[str, Any], said: Said) -> Iterator[str]:
    most, attempts = accepted.most_attempts(options), accepted.job.notes.attempts
    if held is None:
        used_up = most is not None and attempts > most
        if not used_up and accepted.is_order and not _is_overtime(said):
            yield f"attempts: {{}} was given up before its handler was called, as number {attempts} of {most}"
        if said.attempts != (-1 if used_up else 0):
            yield f"attempts: {{}} has failed without a run as number {attempts} of {most}, and counts {said.attempts}"
        return
    yield from wrong_error(accepted, held, options, said)
    if held.fate in FINAL or _name(said) == "JobTooLarge":
        return
    if most is None or attempts < most:
        yield f"attempts: {{}} has failed for good after {attempts} of {most}"


def wrong_crash(
    accepted: Accepted, held: Held | None, options: Mapping[str, Any], said: Said, run_at: float
) -> Iterator[str]:
    """Yield what is wrong with the end of a run after which the job is tried again; see `wrong_finish`.

    Args:
        run_at: when it is tried again, seconds since the epoch.
    """
    most, attempts = accepted.most_attempts(options), accepted.job.notes.attempts
    if most is not None and attempts >= most and not (held is not None and held.was_healthy(accepted.now, options)):
        yield f"attempts: {{}} is to be tried again after {attempts} of {most}"
    limit = accepted.time_limit(options)
    if held is None or (held.failed is None and not (_is_overtime(said) and held.is_late(limit, float("inf")))):
        if held is not None or not _is_overtime(said):
            yield f"crash: {{}} has crashed, but its handler has not: {said}"
        return
    yield from wrong_error(accepted, held, options, said)
    if isinstance(held.error, Discard):
        yield "attempts: {} was discarded, and is to be tried again"
    if held.failed is None or (_is_overtime(said) and held.outlasted(options["grace"])):
        return  # It ignored the cancellation of its time limit: when its grace was over is not known so exactly.
    crashes = _crashes(accepted, held.failed, options)
    if said.crashes != crashes and min(said.crashes or 0, crashes) < _MOST_CRASHES:
        yield f"crashes: {{}} has crashed {crashes} times in a row, not {said.crashes}"
    pause = options["backoff"] * 2 ** min(crashes - 1, _MOST_DOUBLINGS)
    earliest, latest = held.failed + pause, held.failed + pause * (1 + options["jitter"])
    if isinstance(held.error, Retry) and held.error.after is not None and not _is_overtime(said):
        earliest = latest = held.failed + held.error.after
    if not earliest - TOLERANCE <= run_at <= latest + TOLERANCE:
        yield f"backoff: {{}} failed at {held.failed} and is tried again at {run_at}, not in {earliest}..{latest}"


def wrong_error(accepted: Accepted, held: Held, options: Mapping[str, Any], said: Said) -> Iterator[str]:
    """Yield what is wrong with the error that is kept of a run that failed."""
    name, limit = _name(said), accepted.time_limit(options)
    if name == "TimeoutError":
        if not held.is_late(limit, float("inf")):
            yield f"overtime: {{}} was given up after less than its limit of {limit} s"
        return
    if name == "JobTooLarge" or held.fate == "object":
        return
    if isinstance(held.error, asyncio.CancelledError):
        wanted, text = "JobsError", ""
    else:
        wanted, text = type(held.error).__name__, str(held.error)
    if held.error is None or name != wanted or text not in _text(said) or not said.reason.startswith(name):
        yield f"error: of {{}} {said.error!r} is kept ({said.reason!r}), but its handler has raised {held.error!r}"


def wrong_stop(accepted: Accepted, held: Held | None, run_at: float | None) -> Iterator[str]:
    """Yield what is wrong with the end of a run that does not count; see `wrong_crash`."""
    snoozed = held is not None and isinstance(held.error, Snooze)
    if held is not None and snoozed and held.failed is not None:
        assert isinstance(held.error, Snooze)
        wanted = held.failed + held.error.seconds
        # One that ignores its cancellation may be given back before it says so.
        if run_at is None and held.asked is not None:
            return
        if run_at is None or abs(run_at - wanted) > TOLERANCE:
            yield f"snooze: {{}} was put off at {held.failed} until {run_at}, not {wanted}"
    elif run_at is not None and held is not None:  # one whose arguments the process does not know is put off, uncalled
        yield f"snooze: {{}} was put off until {run_at}, but its handler has not asked for it"
    elif held is not None and held.asked is None and held.fate not in OWN:
        yield "stopped: {} was given back, but its handler was not asked to end"


def _crashes(accepted: Accepted, failed: float, options: Mapping[str, Any]) -> int:
    """Return how many runs have crashed in a row, with this one: it is the first if it had been healthy."""
    if failed - accepted.now > options["health_threshold"]:
        return 1
    return accepted.job.notes.crashes + 1


def _is_overtime(said: Said) -> bool:
    return _name(said) == "TimeoutError"


def _name(said: Said) -> str:
    error = reader.value_of(said.error or b"")
    return "" if error is None else str(error[0])


def _text(said: Said) -> str:
    error = reader.value_of(said.error or b"")
    return "" if error is None else str(error[1])
