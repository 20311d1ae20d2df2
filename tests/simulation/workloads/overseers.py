"""Those who look at what nobody else does: the queue, the tree, whether calls return and subscribers are up to date."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, ClassVar, Final

from jobs_service import JobEvent, JobId, JobNotFound, JobState, JobType, NoTypeTimeout
from jobs_service.testing import Process, SimulatedTransaction
from tests.simulation.calls import STOP_AND_REMOVE
from tests.simulation.client import Client
from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.subscribers import all_of, all_that_is_told
from tests.simulation.workloads.workers import Workers

_MOMENT: Final = 1.5
_FINAL: Final = (JobState.FINISHED, JobState.REMOVED)
_TOLERANCE: Final = 1e-6


class Overseers(Workload):
    """Look at the queue: what is due is made ready in time, also while no worker is there to do it.

    It holds in runs without faults that take time, and where types come and go no more than the run's own.
    """

    name = "overseers"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        # When a type of the run last changed, and any other one.
        self._types_since = 0.0
        self._others_since: dict[JobType, float] = {}
        run.world.cluster.observers.append(self)

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        for entry in transaction.journal:
            if entry.name in ("set timeout", "clear timeout"):
                if entry.type in self.run.types:
                    self._types_since = self.run.world.loop.time()
                else:
                    self._others_since[entry.type] = self.run.world.loop.time()

    async def step(self, client: Client) -> None:
        if self.random.random() < 0.3:
            await self._schedule(client)
        else:
            self._look(client)

    async def _schedule(self, client: Client) -> None:
        """Have two jobs scheduled, the second when the queue may just be looked at because of the first."""
        type, pause = self.some_type(), self.random.uniform(0.0, 0.1 + 4 * self.run.world.cluster.latency)
        now = client.process.clock.wall_time()
        first, second = now + self.random.uniform(3.0, 6.0), now + self.random.uniform(0.3, 1.0)
        with contextlib.suppress(NoTypeTimeout):
            await client.add(type, self.some_id(), if_exists="resubmit", run_at=first)
        await asyncio.sleep(pause)
        with contextlib.suppress(JobNotFound):
            await client.resubmit(type, self.some_id(), run_at=second)

    def _look(self, client: Client) -> None:
        run = self.run
        if client.jobs._tree.root is None:
            return
        settings = client.jobs.settings
        looked_at = 4 / 3 * settings.type_check_period + _MOMENT
        types_served = max(self._types_since, run.quiet.quick_since()) + looked_at
        due_since = client.process.clock.wall_time() - _MOMENT
        now = run.world.loop.time()
        for (type, id), job in run.history.model.jobs.items():
            if job.state != "scheduled" or job.run_at is None or type not in run.history.model.timeouts:
                continue
            served = max(types_served, self._others_since.get(type, 0.0) + looked_at)
            written = run.history.states(type, id)[-1].time
            if job.run_at < due_since and max(served, written + _MOMENT) < now:
                run.complain(f"overdue: {type!r}/{id!r} was due at {job.run_at:.3f}, and {client.process} sleeps")


class Closers(Workers):
    """Workers who come when the storm is over: for runs in which no others do."""

    name = "closers"
    weight: ClassVar[int] = 0

    async def settle(self, client: Client) -> None:
        if not any(each.name == Workers.name for each in self.run.workloads):
            await super().settle(client)

    def check(self) -> Iterator[str]:
        """Leave the effects to those who have them."""
        yield from ()


class Inspectors(Workload):
    """Look at the supervisor tree: who runs was started after those it relies on, and nobody dies for no reason."""

    name = "inspectors"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        # Of every part of every process: how often it had been restarted, and when that was looked at.
        self._seen: dict[tuple[Process, str], tuple[int, float]] = {}

    async def step(self, client: Client) -> None:
        run, process = self.run, client.process
        tree = client.jobs.supervision()
        for name, restarts, is_patient in _restarts(tree):
            before, since = self._seen.get((process, name), (0, run.opened[process]))
            if is_patient:  # After a fault it may be as long as its pause before something is started again.
                before, since = 0, 0.0
            self._seen[process, name] = restarts, run.world.loop.time()
            if restarts > before and run.quiet.quick_since() <= since:
                run.complain(f"tree: in {process}, {name} was restarted for no reason since {since:.3f}")
        if tree.get("name") == "runner":
            return  # Its lanes have nothing to do with each other.
        # The runner is a tree of its own, which is begun when the service asks for it.
        children = [child for child in tree.get("children", []) if child["name"] != "runner"]
        for before, after in pairwise(children):
            if before["state"] == after["state"] == "running" and before["seconds"] < after["seconds"]:
                self.run.complain(
                    f"tree: in {client.process}, {after['name']} runs for {after['seconds']:.3f} s, "
                    f"{before['name']} for {before['seconds']:.3f} s"
                )


class Stoppers(Workload):
    """Stop and remove jobs: when that returns, the job was gone."""

    name = "stoppers"

    async def step(self, client: Client) -> None:
        type, id = self.some_type(), self.some_id()
        seconds = self.random.choice([1.0, 10.0])
        removal = client.begin(STOP_AND_REMOVE, type, id)
        with contextlib.suppress(TimeoutError, JobNotFound):
            await client.jobs.stop_and_remove(type, id, timeout=seconds)
            states = self.run.history.states(type, id)
            before = [each.state for each in states if each.version <= removal.version]
            since = {each.state for each in states if each.version > removal.version}
            # What is removed by the transaction that adds it, or adds it anew, was never seen to be gone.
            if before and before[-1] is not JobState.REMOVED and not since & {JobState.REMOVED, JobState.PENDING}:
                self.run.complain(f"no effect: {removal} returned, but nobody has removed the job")


class Keepers(Workload):
    """Set a type's timeout to what it is: that returns, whatever becomes of the actors who are told of it."""

    name = "keepers"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        self._hung: list[str] = []

    async def step(self, client: Client) -> None:
        type = self.some_type()
        try:
            await client.jobs.set_type_timeout(type, await client.jobs.get_type_timeout(type))
        finally:
            # Who has waited until all was over is canceled then.
            if self.run._over:
                self._hung.append(f"set_type_timeout of {type!r} by {client.process}")

    def check(self) -> Iterator[str]:
        """Nobody has waited to the end."""
        for call in self._hung:
            yield f"hangs: {call} did not return"


class Followers(Workload):
    """Follow many jobs in one subscription for a while: then they are known as they have been for the last moment.

    That it takes no longer holds in runs without faults that take time.
    """

    name = "followers"

    async def step(self, client: Client) -> None:
        run = self.run
        type, patience = self.some_type(), self.random.uniform(2.0, 8.0)
        ids = [id for key, id in run.history.model.jobs if key == type]
        told: dict[JobId, JobEvent] = {}
        try:
            async with client.jobs.subscribe_many([(type, id) for id in ids]) as events, asyncio.timeout(patience):
                async for event in events:
                    told[event.id] = event
        except TimeoutError:
            if run.quiet.quick_since() <= max(0.0, run.world.loop.time() - _MOMENT):
                self._compare(client, type, ids, told)
        except JobNotFound:
            pass

    def _compare(self, client: Client, type: JobType, ids: list[JobId], told: dict[JobId, JobEvent]) -> None:
        now = self.run.world.loop.time()
        for id in ids:
            event, state = told.get(id), self.run.history.states(type, id)[-1]
            if (event is not None and event.state in _FINAL) or state.time > now - _MOMENT:
                continue
            known, wanted = None if event is None else all_of(event), all_that_is_told(state)
            if known != wanted:
                self.run.complain(
                    f"behind: {client.process} was told {known} of {type!r}/{id!r}, which is {wanted} "
                    f"since {state.time:.3f}"
                )


class Measurers(Workload):
    """Change types' timeouts, and look whether silence is measured anew from then on.

    It holds in runs without faults that take time, where every activity monitor has seen the timeout from before.
    """

    name = "measurers"

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        # Of every type: its timeout, since when, and whether that from before was there long enough to be seen.
        self._timeouts: dict[JobType, tuple[float | None, float, bool]] = {}
        # Monitors that have not seen the latest ones sample as rarely as the longest one that there was has them do.
        self._longest: dict[JobType, float] = {}
        run.world.cluster.observers.append(self)

    async def step(self, client: Client) -> None:
        await client.jobs.set_type_timeout(self.some_type(), self.random.choice([1.0, 3.0, 6.0]))

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        for entry in transaction.journal:
            if entry.name in ("set timeout", "clear timeout"):
                self._changed(entry.type, entry.arguments[0] if entry.arguments else None)
            elif entry.name == "lost" and entry.result and not isinstance(entry.result, type):
                self._lost(entry.type, [id for id, _ in entry.result])

    def _changed(self, type: JobType, seconds: float | None) -> None:
        now = self.run.world.loop.time()
        before, since, _ = self._timeouts.get(type, (None, now, False))
        if seconds != before:
            longest = self._longest[type] = max(self._longest.get(type, 0.0), before or 0.0)
            self._timeouts[type] = seconds, now, before is not None and now - since > longest / 2 + _MOMENT

    def _lost(self, type: JobType, ids: list[JobId]) -> None:
        seconds, since, was_seen = self._timeouts.get(type, (None, 0.0, False))
        measured = self.run.world.loop.time() - since
        quick = self.run.quiet.quick_since() <= max(0.0, since - self._longest.get(type, 0.0))
        if was_seen and seconds is not None and measured < seconds - _TOLERANCE and quick:
            self.run.complain(
                f"early: {ids} of {type!r} were taken for lost {measured:.3f} s after the timeout became {seconds}"
            )


def _restarts(tree: dict[str, Any], is_patient: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Yield how often each node of a tree was restarted, and whether that may wait for a pause, as in a runner's."""
    if tree:
        is_patient = is_patient or tree["name"] == "runner"
        yield tree["name"], tree["restarts"], is_patient
    for child in tree.get("children", []):
        yield from _restarts(child, is_patient)
