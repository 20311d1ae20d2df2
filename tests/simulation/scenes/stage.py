"""What every scene is: one feature, by itself, in calm weather, so that what must happen soon can be held to it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final

from jobs_service import JobEvent, JobId, JobsError, JobsService, JobState, JobType, RunningJob
from jobs_service.testing import Process
from tests.simulation.checks import held_after
from tests.simulation.client import Client
from tests.simulation.workloads.subscribers import Heard, Subscribers, all_of, all_that_is_told

if TYPE_CHECKING:
    from tests.simulation.run import Run

RARELY: Final = 60.0
"""Seconds between two looks of a service at all types: within a scene nothing is mended by these."""
_LONGEST: Final = 900.0
"""Seconds of virtual time that no scene takes."""
_STEP: Final = 0.02
_FINAL: Final = (JobState.FINISHED, JobState.REMOVED)


class Scene:
    """Some processes with settings of their own, and what they do; nothing else goes on meanwhile.

    Args:
        run: the run that it is part of.
        number: of the scene in the run.

    Attributes:
        name: for people, and for its draws.
        embedded: whether it is for embedded stores, else for clusters.
        type: of its jobs, which no other scene has.
        random: its own draws.
        moment: seconds within which happens what must happen soon: some requests to the cluster, and a pause.
    """

    name: ClassVar[str]
    embedded: ClassVar[bool] = False

    def __init__(self, run: Run, number: int) -> None:
        self.run = run
        self.type: JobType = ("scene", number)
        self.random = run.world.choices.stream(f"scene {self.name}")
        self.moment = 0.7 + 15 * run.world.cluster.latency
        self.subscribers = Subscribers(run)
        self._number = number
        self._processes = 0

    async def play(self) -> None:
        """Do it once."""
        raise NotImplementedError

    # Processes

    def register(self, jobs: JobsService) -> None:
        """Make functions handlers of a service that is about to be opened."""

    def begin(
        self, program: Callable[[Client], Awaitable[object]], *, supervise: bool = True, **settings: Any
    ) -> Process:
        """Start a process that has an open service, and runs a program with it.

        Args:
            program: is given the client of that service.
            supervise: whether the service has its supervisor tree.
            settings: beside those that are the same in all scenes.
        """
        run = self.run
        drawn = run._settings[0].model_copy(update={"type_check_period": RARELY, "process_heartbeat": 0.0, **settings})
        self._processes += 1

        async def live(process: Process) -> None:
            jobs = process.service(supervise=supervise)
            self.register(jobs)
            try:
                async with jobs:
                    run.services[process], run.opened[process] = jobs, self.now
                    async with asyncio.timeout(_LONGEST):
                        await program(Client(run, process, jobs))
            except TimeoutError:
                self.complain(f"hangs: {process} had not ended after {_LONGEST:.0f} s")
            finally:
                # One that was killed is no longer there: that is collected later.
                for held in held_after(jobs) if run.services.pop(process, None) is not None else ():
                    run.complain(f"held: {process} was left, but holds {held}")

        process = run.begin(f"scene{self._number}-{self._processes}", live, settings=drawn)
        run.processes.append(process)
        return process

    async def within(
        self, program: Callable[[Client], Awaitable[object]], *, supervise: bool = True, **settings: Any
    ) -> None:
        """Run a program in a process of its own to its end; see `begin`."""
        await self.end(self.begin(program, supervise=supervise, **settings))

    async def end(self, process: Process, *, fails: type[Exception] | None = None) -> None:
        """Wait until a process has ended: well or, if it is to fail, with such an error."""
        await process.ended()
        self.run.processes.remove(process)
        self.run.services.pop(process, None)
        failure = process.failure
        if not isinstance(failure, type(None) if fails is None else fails):
            self.complain(f"{process} has ended with {failure!r}")

    async def clean(self, client: Client, types: Iterable[JobType] = ()) -> None:
        """Leave no job behind: the next scene has nobody to watch over them."""
        wanted = {self.type, *types}
        for type, id in [key for key in self.run.history.model.jobs if key[0] in wanted]:
            with contextlib.suppress(JobsError):
                await client.remove(type, id, force=True)

    @contextmanager
    def weather(self, **rates: float) -> Any:
        """Have faults hit until left."""
        choices = self.run.world.choices
        before = dict(choices.rates)
        choices.rates.update(rates)
        try:
            yield
        finally:
            choices.rates.clear()
            choices.rates.update(before)

    # Checks

    def complain(self, what: str) -> None:
        """Note that something is wrong."""
        self.run.complain(f"scene of {self.name}: {what}")

    @property
    def now(self) -> float:
        """The loop's time in seconds."""
        return self.run.world.loop.time()

    def state(self, id: JobId, type: JobType | None = None) -> str | None:
        """Return what the model says that a job is: None when it is not there."""
        job = self.run.history.model.jobs.get((self.type if type is None else type, id))
        return None if job is None else str(job.state)

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> bool:
        """Wait until something is so; complain if it takes longer than so many seconds."""
        began = self.now
        while not condition():
            waited = self.now - began
            if waited >= seconds:
                self.complain(f"{what}; that took more than {seconds:.2f} s")
                return False
            await asyncio.sleep(min(max(_STEP, waited / 8), seconds - waited + _STEP))
        return True

    # Jobs

    async def take(self, client: Client, id: JobId, type: JobType | None = None, **options: Any) -> RunningJob | None:
        """Add a job, or have it run again, and accept it: it is the only one of its type that waits."""
        type = self.type if type is None else type
        await client.add(type, id, if_exists="resubmit", **options)
        found = await client.accept(type, timeout=0)
        return found[0] if found else None

    # Subscriptions

    def heard(self, client: Client, id: JobId, type: JobType | None = None) -> Heard:
        """Return a new subscription's record, whose events are compared with the job's history at the end."""
        heard = Heard(self.type if type is None else type, id, str(client.process), client.version)
        self.subscribers.heard.append(heard)
        return heard

    async def listen(self, client: Client, heard: Heard, slow: float = 0.0) -> None:
        """Iterate over a job's events to their end; sleep so many seconds after each of them."""
        try:
            async with client.jobs.subscribe(heard.type, heard.id) as events:
                async for event in events:
                    heard.events.append(event)
                    if slow:
                        await asyncio.sleep(slow)
            heard.over = True
        finally:
            heard.gone = not heard.over

    @asynccontextmanager
    async def listeners(self, client: Client, wanted: Iterable[tuple[Heard, float]]) -> AsyncIterator[None]:
        """Have some listen until left."""
        tasks = [asyncio.create_task(self.listen(client, heard, slow)) for heard, slow in wanted]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    self.complain(f"a subscription failed with {ended!r}")

    def knows(self, heard: Heard) -> bool:
        """Whether a subscriber knows the job as it is now."""
        last = self.run.history.states(heard.type, heard.id)[-1:]
        told: JobEvent | None = heard.events[-1] if heard.events else None
        if told is None or not last:
            return told is None and not last
        if told.state in _FINAL:
            return told.state is last[0].state
        return all_of(told) == all_that_is_told(last[0])

    async def all_know(self, wanted: Iterable[Heard], seconds: float, what: str) -> None:
        """Wait until all subscribers know their jobs as they are."""
        wanted = list(wanted)
        if not await self.until(lambda: not [heard for heard in wanted if not self.knows(heard)], seconds, what):
            for heard in wanted:
                if not self.knows(heard):
                    self.complain(f"{heard} was told {heard.events[-1:]}")

    def check(self) -> None:
        """Compare what subscribers were told with what was so."""
        for complaint in self.subscribers.check():
            self.complain(complaint)


async def some_turns(most: int) -> None:
    """Let others run for so many turns of the loop."""
    for _ in range(most):
        await asyncio.sleep(0)


def children_of(tree: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Return the children of a supervisor, by the tree that a service shows."""
    if tree.get("name") == name:
        return list(tree["children"])
    return [each for child in tree.get("children", []) for each in children_of(child, name)]
