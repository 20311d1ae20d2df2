"""What must become of a job by what its handler does, run by run: the page on handlers, as a small model.

It knows when each run begins and how it ends, and nothing of the service. Each job is a case of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from jobs_service import Discard, Outcome, Retry, Snooze
from tests.simulation.drills.drill import Drill

NO_RESULTS: Final[tuple[Any, ...]] = (object(), {1, 2}, float("nan"), float("inf"), b"bytes", {"a": object()})
"""What JSON cannot hold."""

_MOST_HISTORY: Final = 20
_EXACT: Final = 1e-3
_MOST_DOUBLINGS: Final = 10
_WITHOUT_TRACEBACK: Final = frozenset({"Retry", "Discard", "InvalidJob"})


@dataclass
class Case:
    """One job.

    Attributes:
        id: of it.
        script: what its handler does; called with the case and the job.
        times: how often it does so before it ends well.
        options: that the job is enqueued with.
        in_thread: whether its handler is a plain function.
        data: what it is added with, where that is nothing that its handler takes; None elsewhere.
        counts: what decides where the handler raises several errors.
        runs: how many have begun.
        began, asked: when the last one began, and was first told to end; on the loop's clock, seconds.
        removed: when somebody has asked for its removal; `forced` whether at once.
        attempts, crashes: runs that count, and crashes in a row.
        earliest, latest: when it is to run next, if it is.
        due: whether it is to run again.
        outcome, result, error: of its end, as far as it has ended. `error` is the kind and the message.
        kinds: of its history, with details where they are known, the oldest first.
        log: what is to be said of it: event and attempt.
        itself: whether its handler has ended it itself.
        is_gone: whether there is no such job any more.
        gives_no_result: whether what it returns is none.
        has_raised: whether the last run has raised an error of its own, and not one in a group.
        has_traceback: whether that is kept with its error.
        went: whether it goes on after its grace.
        begun: set when a run begins.
    """

    id: str
    script: Callable[[Case, Any], Any]
    times: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    in_thread: bool = False
    data: Any = None
    counts: BaseException | None = None
    runs: int = 0
    began: float = 0.0
    asked: float | None = None
    removed: float | None = None
    forced: bool = False
    attempts: int = 0
    crashes: int = 0
    earliest: float = 0.0
    latest: float = 0.0
    due: bool = True
    outcome: Outcome | None = None
    result: Any = None
    error: tuple[str, str] | None = None
    kinds: list[tuple[str, str | None]] = field(default_factory=lambda: [("added", None)])
    log: list[tuple[str, int]] = field(default_factory=list)
    itself: bool = False
    is_gone: bool = False
    gives_no_result: bool = False
    has_raised: bool = False
    has_traceback: bool = False
    went: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def goes_well(self) -> bool:
        """Whether this run is to end well at last."""
        return self.runs > self.times


class Judge:
    """Says of each run what follows.

    Args:
        drill: that it is part of.
        options: of the handlers.
    """

    def __init__(self, drill: Drill, options: dict[str, Any]) -> None:
        self.drill = drill
        self.options = options

    def begins(self, case: Case, job: Any) -> None:
        """A run begins: when it is to, and told how often it has run."""
        now = self.drill.time()
        if not case.due:
            self.wrong(case, "runs again")
        if not case.earliest - _EXACT <= now <= case.latest + self.drill.moment:
            self.wrong(case, f"runs at {now:.3f}, not from {case.earliest:.3f} to {case.latest:.3f}")
        case.due, case.itself, case.went, case.asked, case.counts = False, False, False, None, None
        case.runs += 1
        case.attempts += 1
        case.began = now
        self.note(case, "started")
        if job.attempts != case.attempts:
            self.wrong(case, f"is told that it runs for the {job.attempts}. time, not {case.attempts}.")
        if (job.max_attempts, job.time_limit) != (case.options.get("max_attempts"), case.options.get("time_limit")):
            self.wrong(case, f"is told {job.max_attempts} attempts, {job.time_limit} s")
        case.begun.set()

    def limit(self, case: Case) -> float | None:
        """Return how many seconds a run may take."""
        limit: float | None = case.options.get("time_limit") or self.options["time_limit"]
        return limit

    def returned(self, case: Case, value: Any) -> None:
        """A run has ended with a value."""
        case.has_raised = False
        if self._is_decided(case):
            if case.itself and value is not None and not case.went:
                case.log.append(("result_not_stored", case.attempts))
        elif self._is_late(case):
            self._fails(case, self._overtime(case))
        elif case.in_thread and value is None and case.asked is not None:
            self._given_back(case, None)
        elif case.gives_no_result or any(value is each for each in NO_RESULTS):
            self.fails_for_good(case, "InvalidJob", "the handler returned")
        else:
            self.ends(case, Outcome.SUCCEEDED, value)

    def raised(self, case: Case, error: BaseException) -> None:
        """A run has ended with an error."""
        case.has_raised = case.counts in (None, error) and not isinstance(error, asyncio.CancelledError)
        if isinstance(error, asyncio.CancelledError) and case.removed is None and (case.itself or case.went):
            self.wrong(case, "has ended its job itself, and is interrupted")
        error = case.counts or error
        if self._is_decided(case):
            if case.itself and not case.went:
                case.log.append(("handler_failed_after_end", case.attempts))
        elif self._is_late(case) and isinstance(error, asyncio.CancelledError | Snooze):
            self._fails(case, self._overtime(case) if isinstance(error, asyncio.CancelledError) else error)
        elif isinstance(error, Snooze):
            self._given_back(case, error.seconds)
        elif isinstance(error, asyncio.CancelledError):
            self._fails(case, None)
        else:
            self._fails(case, error)

    def ends(self, case: Case, outcome: Outcome, result: Any = None, *, itself: bool = False) -> None:
        """The job has ended for good, by its handler itself or as that has ended."""
        case.outcome, case.result, case.itself = outcome, result, itself
        self.note(case, "canceled" if outcome is Outcome.CANCELED else "finished", itself=itself)

    def note(self, case: Case, kind: str, detail: str | None = None, *, itself: bool = False) -> None:
        """Something has happened to the job: its history keeps as much as its handler wants, or the usual."""
        case.kinds.append((kind, detail))
        most = _MOST_HISTORY if itself else self.options["max_history"]
        del case.kinds[:-most]

    def fails_for_good(self, case: Case, name: str, message: str) -> None:
        """The job has failed for good, whatever attempts it has."""
        case.error, case.has_traceback = (name, message), case.has_raised and name not in _WITHOUT_TRACEBACK
        self.note(case, "crashed", name)
        case.log.append(("job_failed", case.attempts))
        self.ends(case, Outcome.FAILED)

    def is_due(self, case: Case, earliest: float, latest: float) -> None:
        """The job runs again."""
        case.due, case.earliest, case.latest = True, earliest, latest

    def wrong(self, case: Case, what: str) -> None:
        """Complain of a case."""
        self.drill.complain(f"{case.id!r}, run {case.runs}: {what}")

    def _is_decided(self, case: Case) -> bool:
        """Whether it has ended before its handler has, which may say then what it wants."""
        if case.removed is not None and not case.itself and not case.went:
            if case.forced:
                case.is_gone = True
                case.log.append(("job_taken_over", case.attempts))
            else:
                self.ends(case, Outcome.CANCELED)
            return True
        return case.itself or case.went

    def _is_late(self, case: Case) -> bool:
        limit = self.limit(case)
        return limit is not None and self.drill.time() - case.began >= limit - _EXACT

    def _overtime(self, case: Case) -> BaseException:
        return TimeoutError(f"it ran longer than its time limit of {self.limit(case):g} s")

    def _given_back(self, case: Case, seconds: float | None) -> None:
        """The run does not count."""
        case.attempts = 0 if seconds is not None else case.attempts - 1
        case.crashes = 0
        detail = None if seconds is None else f"snoozed for {seconds:g} s"
        self.note(case, "stopped", detail)
        now = self.drill.time()
        self.is_due(case, now + (seconds or 0.0), now + (seconds or 0.0))

    def _fails(self, case: Case, error: BaseException | None) -> None:
        """The run has failed; without an error, since its handler has canceled itself."""
        case.has_raised = case.has_raised or error is None
        name = "JobsError" if error is None else type(error).__name__
        message = "the handler canceled itself" if error is None else _text(error)
        now, options = self.drill.time(), self.options
        most = case.options.get("max_attempts") or options["max_attempts"]
        if isinstance(error, Discard) or (most is not None and case.attempts >= most):
            self.fails_for_good(case, name, message)
            return
        case.error, case.has_traceback = (name, message), case.has_raised and name not in _WITHOUT_TRACEBACK
        self.note(case, "crashed", name)
        was_healthy = now - case.began > options["health_threshold"]
        case.crashes = 1 if was_healthy else case.crashes + 1
        pause = options["backoff"] * 2 ** min(case.crashes - 1, _MOST_DOUBLINGS)
        shortest, longest = pause, pause * (1 + options["jitter"])
        if isinstance(error, Retry) and error.after is not None:
            shortest = longest = error.after
        if not isinstance(error, Retry):
            case.log.append(("job_crashed", case.attempts))
        self.is_due(case, now + shortest, now + longest)

    # What is seen of it

    def check(self, case: Case, found: Any, logged: list[tuple[str, int | None]]) -> None:
        """The job is what followed from its runs.

        Args:
            case: which job.
            found: as it was read; None where there is none.
            logged: what was said of it: event and attempt.
        """
        if found is None or case.is_gone:
            if (found is None) != case.is_gone:
                self.wrong(case, f"is {found!r}")
            return
        if case.outcome is None or found.outcome is not case.outcome:
            self.wrong(case, f"is {found!r} ({found.error}), not {case.outcome}; it is due: {case.due}")
            return
        if case.outcome is not Outcome.CANCELED and found.result != case.result:
            self.wrong(case, f"has the result {found.result!r}, not {case.result!r}")
        if found.attempts != case.attempts:
            self.wrong(case, f"has run {found.attempts} times, not {case.attempts}")
        kept = None if found.error is None else (found.error.type, found.error.message)
        if case.error is None or kept is None:
            if (case.error is None) != (kept is None):
                self.wrong(case, f"has the error {kept}, not {case.error}")
        elif kept[0] != case.error[0] or case.error[1] not in kept[1]:
            self.wrong(case, f"has the error {kept}, not {case.error}")
        elif (kept[0] in found.error.traceback) != case.has_traceback:
            self.wrong(case, f"has an error with the traceback {found.error.traceback!r}")
        self._check_history(case, found)
        same = [event for event, _ in logged] == [event for event, _ in case.log]
        if not same or any(said[1] not in (None, wanted[1]) for said, wanted in zip(logged, case.log, strict=True)):
            self.wrong(case, f"is said {logged} of, not {case.log}")

    def _check_history(self, case: Case, found: Any) -> None:
        wanted = [*reversed(case.kinds)]
        history = [(event.kind.value, event.detail) for event in found.history]
        fits = len(history) == len(wanted) and all(
            kind == wished and (part is None or detail.startswith(part))
            for (kind, detail), (wished, part) in zip(history, wanted, strict=True)
        )
        if not fits:
            self.wrong(case, f"has the history {history}, not {wanted}")
        times = [event.at for event in found.history]
        if times != sorted(times, reverse=True):
            self.wrong(case, f"has a history at {times}")


def _text(error: BaseException) -> str:
    if not isinstance(error, BaseExceptionGroup):
        return str(error)
    return "; ".join(f"{type(each).__name__}: {each}" for each in error.exceptions)
