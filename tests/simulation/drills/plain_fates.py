"""What plain functions do in the drill of the ends of handlers, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from jobs_service import Discard, JobCanceled, JobError, Outcome, Retry, Snooze, WorkerConflict
from tests import reader
from tests.simulation.drills.verdicts import Case, Judge

VALUES: Final[tuple[Any, ...]] = (0, "", False, [], {}, "text", 1.5, {"a": [1, {"b": None}]}, ["\u00e9", -1], 10**12)
"""What a handler may return: also what Python takes for nothing."""

POLL: Final = 0.15
"""Seconds after which a plain function looks again whether it is to end."""


class PlainFates:
    """What the plain functions of one drill do.

    Args:
        judge: knows what follows.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._drill = judge.drill
        self._random = judge.drill.random

    def scripts(self) -> dict[str, Callable[[Case, Any], Any]]:
        """Return plain functions by name."""
        return {
            "returns": self._returns,
            "raises": self._raises,
            "works": self._works,
            "finishes": self._finishes,
            "is late": self._is_late,
            "is removed": self._is_removed,
        }

    def _sleep(self, seconds: float) -> None:
        self._drill.run.stage.sleep(seconds)

    def _returns(self, case: Case, job: Any) -> Any:
        self._sleep(self._random.choice([0.0, 0.2]))
        return self._random.choice([None, *VALUES])

    def _raises(self, case: Case, job: Any) -> Any:
        if case.goes_well:
            return "well"
        raise self._random.choice([ValueError("in a thread"), Retry(0.3), Snooze(0.2), Discard("in a thread")])

    def _works(self, case: Case, job: Any) -> Any:
        """Do each operation once."""
        if case.goes_well:
            return {"works": case.runs}
        job.update({"step": case.runs, "call": 0})
        job.progress(1, 2, "half")
        model = self._drill.job(job.id, job.type)
        said = None if model is None else reader.value_of(model.notes.progress or b"")
        if said is None or said[:3] != [1, 2, "half"]:
            self._judge.wrong(case, f"has said that it is half done, and is seen at {said}")
        if self._random.random() < 0.5:
            job.report(3, 4)
        if job.wait_for_stop(self._random.choice([0.0, 0.2])) or job.stopping:
            self._judge.wrong(case, "is told to stop")
        later = self._random.choice([0.4, 0.9])
        due = self._drill.time() + later
        job.resubmit(run_at=self._drill.client.process.clock.wall_time() + later, priority=1)
        case.went = True
        case.attempts = case.crashes = 0
        self._judge.note(case, "finished")
        self._judge.is_due(case, due, due)
        return None

    def _finishes(self, case: Case, job: Any) -> Any:
        match self._random.choice(["fails", "with", "releases", "well"]):
            case "fails":
                job.finish(outcome=Outcome.FAILED, error=JobError("Own", "plain"), result=[1])
                case.error = ("Own", "plain")
                self._judge.ends(case, Outcome.FAILED, [1], itself=True)
            case "with":
                job.finish_with(lambda tx: {"plain": 1})
                self._judge.ends(case, Outcome.SUCCEEDED, {"plain": 1}, itself=True)
            case "well":
                job.finish(result={"well": 1})
                self._judge.ends(case, Outcome.SUCCEEDED, {"well": 1}, itself=True)
            case _:
                return self._returns(case, job)
        return self._random.choice([None, "this is not the result"])

    def _is_removed(self, case: Case, job: Any) -> Any:
        """Look again and again whether it is to end; no operation works then."""
        until = self._drill.time() + 600.0
        polls = self._random.random() < 0.5
        while self._drill.time() < until:
            if polls:
                self._sleep(POLL)
            if job.stopping if polls else job.wait_for_stop(60.0):
                break
        case.asked = self._drill.time()
        if self._random.random() < 0.5:
            try:
                job.progress(1)
                self._judge.wrong(case, "was removed, and says how far it has come")
            except (JobCanceled, WorkerConflict):
                pass
        return self._random.choice([None, {"of no": "use"}])

    def _is_late(self, case: Case, job: Any) -> Any:
        """Take longer than the limit, whether it sees that or not."""
        limit = self._judge.limit(case)
        if case.goes_well or limit is None:
            return None
        sees = self._random.random() < 0.7
        while sees and not job.stopping:
            self._sleep(POLL)
        if not sees:
            self._sleep(limit + 0.1)
        took = self._drill.time() - case.began
        if not limit - 1e-3 <= took <= limit + 2 * POLL:
            self._judge.wrong(case, f"is told after {took:.3f} s that its {limit} s are over")
        return self._random.choice([None, "too late"])
