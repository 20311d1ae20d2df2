"""What is checked beside the history and the calls: keys, times, and what a service still holds after it was left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from jobs_service import JobsService, JobType
from jobs_service.supervision import Actor
from jobs_service.supervision.supervisor import Supervising
from jobs_service.testing import EPOCH, SimulatedTransaction
from tests.checker import complaints_about
from tests.simulation.replay import Silence
from tests.simulation.rows import PREFIX, is_damage

if TYPE_CHECKING:
    from tests.simulation.run import Run

_EVERY: Final = 24
_NOTICED: Final = 6.0
_LATEST: Final = 5.0
"""Seconds, beside its period and its jitter, after which every process has looked at the types."""

_FEW: Final = 20
_MANY: Final = 100

_REMEMBERED: Final = 30
"""Jobs of a type that were lost last, whose times are kept."""
_REQUESTS: Final = 15
"""Requests to the cluster that it takes at most to lose a batch of jobs, with those that have to be made again."""


class KeyCheck:
    """Walks all keys every few commits. An observer of the cluster.

    Attributes:
        is_held: whether it waits, because somebody has removed keys that the service is about to write again.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._commits = 0
        self.is_held = False

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        if transaction.commit_version is not None:
            self._commits += 1
            if self._commits % _EVERY == 0 and not self.is_held:
                self.check()

    def check(self) -> None:
        """Walk all keys now."""
        run = self._run
        versions = run.world.cluster.versions
        version = versions.enter()
        pairs = list(versions.scan_at(version, PREFIX, PREFIX + b"\xff", False))
        if run.is_damaged:
            pairs = [pair for pair in pairs if not is_damage(*pair)]
        versions.leave(version)
        newest = (version + 1).to_bytes(8, "big") + b"\x00\x00" if run.machine is None else run.machine.next_stamp
        now = EPOCH + run.world.loop.time() + run.latest_clock
        for complaint in run.machine.unguarded() if run.machine is not None else ():
            run.complain(f"unguarded: {complaint}")
        for process, jobs in run.services.items():
            for complaint in crowded(jobs, _MANY):
                run.complain(f"unbounded: {process}: {complaint}")
        for complaint in complaints_about(
            PREFIX, newest, now, pairs, counted=not run.is_damaged, happened=not run.is_damaged
        ):
            run.complain(f"keys: at version {version}: {complaint}")


class Bounds:
    """Lost jobs are noticed in time: before 1.5 timeouts and a second. An observer of the cluster.

    Nobody is heard of later, for whose silence somebody was to look all the time.

    It holds while nothing takes time, and from the calm on.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._changed: dict[JobType, float] = {}
        self._cleared: set[JobType] = set()
        self._lost: dict[JobType, deque[float]] = {}
        self._since = float("inf")

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        for entry in transaction.journal:
            if entry.name in ("set timeout", "clear timeout"):
                # Another process notices at its next sample, by the timeout that was; where nobody samples the type,
                # because it was cleared, at its next look at the types.
                made_again = entry.name == "set timeout" and entry.type in self._cleared
                noticed = self._run.world.loop.time() + (self._run.longest_period + _LATEST if made_again else _NOTICED)
                self._changed[entry.type] = max(noticed, self._changed.get(entry.type, 0.0))
                if entry.name == "clear timeout":
                    self._cleared.add(entry.type)
                else:
                    self._cleared.discard(entry.type)
        silences, heard = self._run.history.silences, self._run.history.heard
        while silences:
            silence = silences.pop()
            self._lost.setdefault(silence.type, deque(maxlen=_REMEMBERED)).append(silence.time)
            self._look_at(silence, "before it was taken for lost")
        while heard:
            silence = heard.pop()
            if silence.silent > 1.0 and self._is_watched(silence.time - silence.silent):
                self._look_at(silence, "and was not taken for lost")

    def _look_at(self, silence: Silence, what: str) -> None:
        began = silence.time - silence.silent
        valid_from = min(self._run.quiet.quick_since(), self._since)
        if silence.timeout is None or max(valid_from, self._changed.get(silence.type, 0.0)) > began:
            return
        # Where a batch holds one job, those before it in the line have a commit each, which others make run again.
        before = sum(began < time < silence.time for time in self._lost.get(silence.type, ()))
        bound = 1.5 * silence.timeout + 1.0 + (4 + _REQUESTS * before) * self._run.world.cluster.latency
        if silence.silent > bound:
            self._run.complain(
                f"late: {silence.type!r}/{silence.id!r} was silent for {silence.silent:.3f} s {what}; "
                f"its timeout is {silence.timeout} s"
            )

    def _is_watched(self, since: float) -> bool:
        """Whether some service has had its supervisor tree since then."""
        run = self._run
        return any(
            process.running and jobs._tree.root is not None and run.opened[process] <= since
            for process, jobs in run.services.items()
        )

    def calm(self, since: float) -> None:
        """Nothing takes time any more from then on."""
        self._since = since


def crowded(jobs: JobsService, most: int) -> Iterator[str]:
    """Yield what of an open service has grown beyond what its few users can have asked of it."""
    waiting = [] if jobs._tree.root is None else list(jobs._tree.root.children)
    while waiting:
        process = waiting.pop()
        if isinstance(process, Supervising):
            waiting += process.children
        elif isinstance(process, Actor) and len(process._inbox) > _FEW:
            yield f"{process.name} has {len(process._inbox)} messages in its inbox"
    for what, found in {
        "operations wait": len(jobs._operations._queue),
        "transactions run": len(jobs._operations._running),
        "workers are in line": sum(line.inside for line in jobs._waiting._lines.values()),
        "jobs are given back": len(jobs._abandoned._releases),
        "jobs are subscribed to": sum(map(len, jobs._hub._targets.values())),
    }.items():
        if found > most:
            yield f"{found} {what}"


def held_after(jobs: JobsService) -> Iterator[str]:
    """Yield what a service still holds after it was left."""
    if jobs._hub._targets or jobs._hub._listeners:
        yield f"subscriptions of {list(jobs._hub._targets)}, listeners of {list(jobs._hub._listeners)}"
    if jobs._waiting._lines:
        yield f"workers in line: {jobs._waiting._lines}"
    if jobs._operations._queue or jobs._operations._running:
        yield f"operations: {len(jobs._operations._queue)} in the queue, {len(jobs._operations._running)} running"
    if jobs._abandoned._releases:
        yield f"{len(jobs._abandoned._releases)} afterthoughts"
    if jobs._registry.runner is not None:
        yield "a runner"
    if jobs._access._watches:
        yield f"{len(jobs._access._watches)} who wait for a watch"
    if jobs._access.inside:
        yield "transaction functions"
