"""What follows from each operation on jobs that handlers run: it is noted, and must fit what their handlers did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jobs_service import JobType, Removal
from jobs_service.testing import SimulatedTransaction
from tests.simulation.client import EFFECTS
from tests.simulation.entry import Entry
from tests.simulation.workloads.handled import MOMENT, OWN, Accepted, Held, wrong_crash, wrong_finish, wrong_stop
from tests.simulation.workloads.runner_checks import RunnerChecks
from tests.simulation.workloads.runner_state import CONTINUOUS, RunnerState

_SHORT: Final = 3.0
_MOVES: Final = frozenset({"accept", "finish", "crash", "stop"})
_UNKNOWN: Final = ("commit", "slow_commit", "slow_answer")
"""What the faults begin with after which a caller does not know whether its commit has happened."""


class RunnerEntries:
    """Takes note of what was committed. An observer of the cluster, and of the log."""

    def __init__(self, known: RunnerState, checks: RunnerChecks) -> None:
        self._run = known.run
        self._known = known
        self._checks = checks

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        if transaction.commit_version is None:
            return
        for entry in transaction.journal:
            if entry.name in _MOVES and entry.result and transaction.process is not None:
                self._known.moved[transaction.process] = self._run.world.loop.time()
            if entry.type in self._known.options and not isinstance(entry.result, type):
                check = getattr(self, f"_after_{entry.name.replace(' ', '_')}", None)
                if check is not None:
                    check(entry, transaction)

    def _after_pause(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._known.resumed_at = float("inf")
        if entry.type == CONTINUOUS:
            self._known.turns_resumed_at = float("inf")

    def _after_resume(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        now = self._run.world.loop.time()
        if entry.type == CONTINUOUS:  # the other type may go on while this one is paused
            self._known.turns_resumed_at = now
        paused = [changes[-1][1] for type, changes in self._run.history.pauses.items() if type in self._known.options]
        self._known.resumed_at = float("inf") if any(paused) else now

    def _after_accept(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        process, now = transaction.process, self._run.world.loop.time()
        assert process is not None
        for id, record in entry.result:
            job = self._run.history.model.jobs[entry.type, id]
            self._known.accepted[record.lock] = Accepted(process, entry.type, id, record.lock, job, now, entry.now)
            self._known.locks[entry.type, id] = record.lock
            self._known.alive[record.lock] = now
        if entry.arguments[0].worker != f"{process.name}/{process.incarnation}":
            self._run.complain(f"worker: {process} accepts jobs as {entry.arguments[0].worker!r}")

    def _after_beat(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._seen_alive(entry.arguments[0])

    def _after_update(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._seen_alive(entry.arguments[0])

    def _seen_alive(self, lock: bytes) -> None:
        if lock in self._known.accepted:
            self._checks.check_alive(lock)
            self._known.alive[lock] = self._run.world.loop.time()

    def _after_set_timeout(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._known.timeouts_changed[entry.type] = self._run.world.loop.time()
        before = [seconds for _, seconds in self._run.history.timeouts.get(entry.type, [])[:-1]]
        self._check_asked(entry, "timeout", entry.arguments[0], was_there=any(before))

    def _after_set_retention(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        kept = (entry.arguments[0].keep, entry.arguments[0].keep_failed)
        if kept not in self._known.retentions[entry.type]:
            self._run.complain(
                f"retention: {entry.type!r} keeps its jobs for {kept}, not {self._known.retentions[entry.type]}"
            )
        before = self._run.history.retentions.get(entry.type, [])[:-1]
        self._check_asked(entry, "retention", kept, was_there=bool(before))

    def _check_asked(self, entry: Entry, what: str, value: object, *, was_there: bool) -> None:
        """A handler that starts makes its type as it declares; what is set later stays, unless somebody asks for more.

        Args:
            entry: the operation.
            what: a setting of the type.
            value: what it was set to.
            was_there: whether it had been set before.
        """
        now = self._run.world.loop.time()
        asked = [each.value for each in self._known.asked if each.type == entry.type and each.until >= now]
        if was_there and value not in asked:
            self._run.complain(
                f"declared: the {what} of {entry.type!r} was set to {value}, and nobody has asked for it"
            )

    def _after_remove(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._take_away(entry.type, entry.id)
        if entry.result is Removal.REMOVED:
            self._over(entry)

    def _after_lost(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        self._checks.watch()
        for id, _ in entry.result:
            lock = self._known.locks.get((entry.type, id), b"")
            held = self._known.held.get(lock)
            runs = held is not None and held in self._known.active.get(held.process, ())
            if runs and held is not None and self._was_quick(entry.type) and lock not in self._known.taken:
                self._run.complain(f"not kept alive: {entry.type!r}/{id!r} runs in {held.process}, and was lost")
            if lock in self._known.accepted:
                self._checks.check_alive(lock)
                self._known.gone.add(lock)
                self._known.ended[lock] = self._run.world.loop.time()
            self._take_away(entry.type, id)

    def _was_quick(self, type: JobType) -> bool:
        """Whether nothing took time since the last sign of life of a job that is lost now."""
        timeout: float = max(self._known.options[type]["timeout"], self._run.history.model.timeouts.get(type, 0.0))
        silent = 1.5 * timeout + _SHORT
        return self._run.quiet.quick_since() <= max(0.0, self._run.world.loop.time() - silent)

    def _take_away(self, type: JobType, id: Any) -> None:
        lock = self._known.locks.get((type, id))
        if lock is not None:
            self._known.taken.setdefault(lock, self._run.world.loop.time())

    def logged(self, event: str, fields: Mapping[str, Any]) -> None:
        """What the log says of a job is so."""
        process = self._run.process_here()
        if event == "job_taken_over" and process is not None and fields["type"] in self._known.options:
            key = (fields["type"], fields["id"])
            own = [
                each
                for each in self._known.accepted.values()
                if (each.type, each.id) == key and each.process is process
            ]
            # Whose commit has an unknown outcome may meet what it has done itself.
            unknown = any(fault.startswith(_UNKNOWN) for fault in self._run.world.choices.faults)
            if own and not unknown and not any(each.lock in self._known.gone for each in own):
                self._known.wrong(own[-1], "logged: that another has taken {} over, but nobody has")

    def _over(self, entry: Entry) -> None:
        """The job is nobody's any more."""
        lock = self._known.locks.pop((entry.type, entry.id), None)
        if lock is not None and entry.name == "remove":
            self._known.gone.add(lock)
        if lock is not None:
            self._known.ended[lock] = self._run.world.loop.time()

    def _run_of(self, entry: Entry) -> tuple[Accepted | None, Held | None]:
        """Return what is known of a run that ends; it may end while its handler goes on only after its grace."""
        lock = entry.arguments[0]
        accepted, held = self._known.accepted.get(lock), self._known.held.get(lock)
        if accepted is not None and held is not None:
            self._checks.check_alive(lock)
            grace = self._known.options[entry.type]["grace"]
            now = self._run.world.loop.time()
            goes_on = held.over is None and held.fate not in OWN and not held.was_paused
            if goes_on and (held.asked is None or now < held.asked + grace - MOMENT):
                self._known.wrong(
                    accepted, f"grace: {{}} was ended at {now:.3f}, but its handler goes on: {held.asked}"
                )
        self._over(entry)
        return accepted, held

    def _after_stop(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        accepted, held = self._run_of(entry)
        if accepted is not None:
            self._complain(accepted, wrong_stop(accepted, held, entry.arguments[1]))

    def _after_finish(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        accepted, held = self._run_of(entry)
        lock, _, outcome, said = entry.arguments
        if EFFECTS + lock not in transaction.written and self._with_effect(lock):
            self._run.complain(f"effects: {entry.type!r}/{entry.id!r} was finished without its effect")
        if accepted is not None:
            options, canceled = self._known.options[entry.type], lock in self._known.taken
            self._complain(accepted, wrong_finish(accepted, held, options, outcome, said, canceled))

    def _with_effect(self, lock: bytes) -> bool:
        held = self._known.held.get(lock)
        return held is not None and held.fate == "finish" and held.error is None and held.asked is None

    def _after_crash(self, entry: Entry, transaction: SimulatedTransaction) -> None:
        accepted, held = self._run_of(entry)
        _, said, run_at, _ = entry.arguments
        if accepted is not None:
            self._complain(accepted, wrong_crash(accepted, held, self._known.options[entry.type], said, run_at))

    def _complain(self, accepted: Accepted, complaints: Iterator[str]) -> None:
        for complaint in complaints:
            self._known.wrong(accepted, complaint)
