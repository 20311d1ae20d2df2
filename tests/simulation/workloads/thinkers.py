"""Plain functions as handlers, in threads: they hear at once when they are to end, and what they return counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from jobs_service import BlockingJob, JobCanceled, JobNotFound, JobsService, JobType, Outcome, WorkerConflict
from jobs_service.testing import Process, SimulatedTransaction
from tests import reader
from tests.simulation.client import Client
from tests.simulation.entry import Entry
from tests.simulation.workloads.base import Workload
from tests.simulation.workloads.handled import MOMENT

THOUGHT: Final[JobType] = "thought"
_POLL: Final = 0.1
_NOTICED: Final = 0.2
"""Seconds within which a function is told that its job was canceled."""
_REQUESTS: Final = 6
_LIMIT: Final = 3.0
_FATES: Final = ("quick", "quick", "polls", "polls", "waits", "deaf", "returns late", "reports", "finishes", "raises")


@dataclass
class Thought:
    """One call of a plain function.

    Attributes:
        process: where.
        id: of its job.
        fate: what it does.
        began: when, on the loop's clock, seconds.
        heard: when it has seen that it is to return; None as long as it has not.
        over: when it ended.
        returned: what it has returned.
        raised: whether it has raised.
    """

    process: Process
    id: Any
    fate: str
    began: float
    heard: float | None = None
    over: float | None = None
    returned: Any = None
    raised: bool = False


class Thinkers(Workload):
    """Enqueue, cancel and interrupt jobs that plain functions run. An observer of the cluster."""

    name = "thinkers"
    weight: ClassVar[int] = 12

    def __init__(self, run: Any) -> None:
        super().__init__(run)
        choose = self.random.choice
        self._options: dict[str, Any] = {
            "slots": choose([1, 2, 4]),
            "timeout": choose([3.0, 6.0]),
            "grace": choose([0.5, 2.0, 4.0]),
            "time_limit": choose([None, None, _LIMIT]),
            "backoff": 0.5,
        }
        self._calls: dict[bytes, Thought] = {}
        self._canceled: dict[Any, float] = {}
        self._enqueued = 0
        run.world.cluster.observers.append(self)

    def register(self, process: Process, jobs: JobsService) -> None:
        """Make a plain function the handler of a service that is about to be opened."""

        @jobs.handler(THOUGHT, **self._options)
        def think(job: BlockingJob, args: dict[str, int]) -> Any:
            fate = "quick" if self.run.is_calm else self.random.choice(_FATES)
            thought = Thought(process, job.id, fate, self.run.world.loop.time())
            self._calls[job.lock] = thought
            try:
                thought.returned = self._think(job, thought)
                return thought.returned
            except BaseException:
                thought.raised = True
                raise
            finally:
                thought.over = self.run.world.loop.time()

    def _think(self, job: BlockingJob, thought: Thought) -> Any:
        stage, random = self.run.stage, self.random
        match thought.fate:
            case "polls" | "waits":
                while not self.run.is_calm:
                    if thought.fate == "polls":
                        stage.sleep(_POLL)
                        stopping = job.stopping
                    else:
                        stopping = job.wait_for_stop(random.choice([_POLL, 1.0]))
                    if self._hears(thought, stopping):
                        return random.choice([None, None, {"late": 1}])
            case "deaf" | "returns late":
                stage.sleep(random.uniform(0.0, 2 * self._options["grace"]))
                return None if thought.fate == "deaf" else {"late": 2}
            case "reports":
                with contextlib.suppress(JobCanceled, WorkerConflict):
                    for done in range(random.randint(1, 3)):
                        job.progress(done, 3)
                        stage.sleep(_POLL)
                    job.update({"step": 1, "call": job.data["call"]})
            case "finishes":
                with contextlib.suppress(JobCanceled, WorkerConflict):
                    job.finish(result={"itself": 1})
                    return "this is not the result"
            case "raises":
                stage.sleep(random.choice([0.0, 0.5]))
                raise ValueError("in a thread")
        return {"began": thought.began}

    def _hears(self, thought: Thought, stopping: bool) -> bool:
        """Note whether a function has heard that it is to return, which is neither too late nor for nothing."""
        run, now, process = self.run, self.run.world.loop.time(), thought.process
        requests = _REQUESTS * run.world.cluster.latency
        leaving, canceled = run.leaving.get(process), self._canceled.get(thought.id)
        limit = self._options["time_limit"]
        reasons = [leaving, None if limit is None else thought.began + limit - MOMENT - requests]
        told_by = [*reasons, None if canceled is None else max(canceled, thought.began) + _NOTICED]
        late = min((each for each in told_by if each is not None), default=float("inf"))
        if stopping:
            thought.heard = now
            if canceled is None and all(each is None or each > now for each in reasons) and run.quiet.is_quick():
                run.complain(f"stopping: the function of {thought.id!r} of {process} is to return for no reason")
        elif now > late + _POLL + 2 * MOMENT + requests and not process.pauses:
            run.complain(f"stopping: the function of {thought.id!r} of {process} was not told for {now - late:.3f} s")
        return stopping

    async def step(self, client: Client) -> None:
        what = self.random.random()
        if what < 0.7:
            for _ in range(self.random.randint(1, 3)):
                self._enqueued += 1
                id = f"t{self._enqueued}"
                await client.enqueue(client.jobs.handlers[THOUGHT], lambda call: {"call": call}, id=id)
        elif what < 0.9:
            running = [each.id for each in self._calls.values() if each.over is None]
            if running:
                with contextlib.suppress(JobNotFound):
                    await client.remove(THOUGHT, self.random.choice(running))
        else:
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
            self.run.quiet.disturb("stop")
            client.process.request_stop()

    # What is checked at each commit

    def ended(self, transaction: SimulatedTransaction) -> None:
        """See Observer."""
        if transaction.commit_version is None:
            return
        for entry in transaction.journal:
            if entry.type == THOUGHT and not isinstance(entry.result, type):
                if entry.name == "remove":
                    self._canceled.setdefault(entry.id, self.run.world.loop.time())
                elif entry.name in ("finish", "stop", "crash"):
                    self._check_end(entry)

    def _check_end(self, entry: Entry) -> None:
        """The end of a run is what its function has made of it."""
        thought = self._calls.get(entry.arguments[0])
        if thought is None or thought.fate == "finishes":
            return
        now, grace = self.run.world.loop.time(), self._options["grace"]
        given_up = thought.over is None
        if entry.name == "stop" and not given_up and (thought.heard is None or thought.returned is not None):
            self._wrong(thought, f"was given back, but its function has returned {thought.returned!r}")
        if entry.name == "crash" and not thought.raised and now - thought.began < _LIMIT - MOMENT:
            self._wrong(thought, "has crashed, but its function has not")
        if entry.name == "finish" and entry.arguments[2] is Outcome.SUCCEEDED:
            if given_up or thought.raised:
                self._wrong(thought, "has succeeded, but its function has not returned")
            elif reader.value_of(entry.arguments[3].result or b"") != thought.returned:
                self._wrong(thought, f"has another result than what its function has returned: {thought.returned!r}")
            elif thought.returned is None and thought.heard is not None:
                self._wrong(thought, "has succeeded, but its function has returned as it was told to")
        if given_up and now - thought.began < grace - MOMENT:
            self._wrong(thought, f"was given up before its grace of {grace} s was over")

    def _wrong(self, thought: Thought, what: str) -> None:
        self.run.complain(f"plain: {thought.id!r} of {thought.process} ({thought.fate}) {what}")

    def open(self) -> Iterator[str]:
        """Functions end before the run does."""
        yield from (f"{name} goes on" for name in self.run.world.left_behind() if name.endswith("think"))
