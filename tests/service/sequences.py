"""Random sequences of operations on jobs, and a player that runs them in transactions and notes what can be seen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from jobs_service import Job, JobsError, JobsService, JobTransaction, Outcome, RunningJob
from tests.service.support import FAR_AWAY, LONG_AGO, T1, TIMEOUT, drained

IDS = ("a", "b", "c")
PRIORITY = st.sampled_from([0, 1, -1, "p"])
RUN_AT = st.sampled_from([None, None, LONG_AGO, FAR_AWAY])
DATA = st.sampled_from([None, 1, "two", {"three": [3]}])
ID = st.sampled_from(IDS)
HANDLE = st.integers(0, 5)

Operation = tuple[str, dict[str, Any]]


def operation(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


def optional(name: str, required: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Operation]:
    left_out = {"data": DATA, "priority": PRIORITY, "run_at": RUN_AT}
    return st.tuples(st.just(name), st.fixed_dictionaries(required, optional=left_out))


OPERATIONS = st.lists(
    st.one_of(
        optional("add", {"id": ID, "if_exists": st.sampled_from(["error", "resubmit", "ignore"])}),
        optional("resubmit", {"id": ID}),
        operation("remove", id=ID, force=st.booleans()),
        operation("accept", max_priority=st.sampled_from([None, 0])),
        operation("accept", max_priority=st.none()),
        operation("accept_many", limit=st.integers(1, 3)),
        operation("get", id=ID),
        operation("look"),
        operation("update", handle=HANDLE),
        operation("update", handle=HANDLE, data=DATA),
        operation("finish", handle=HANDLE, data=DATA, outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.FAILED])),
        operation("finish", handle=HANDLE),
        optional("resubmit_running", {"handle": HANDLE}),
        operation("release", handle=HANDLE),
    ),
    max_size=14,
)


class Player:
    """Plays operations in a transaction and writes down what an application sees of them.

    Attributes:
        handles: of the jobs accepted so far.
        seen: what every operation gave.
    """

    def __init__(self, handles: Iterable[RunningJob] = (), seen: Iterable[Any] = ()) -> None:
        self.handles = list(handles)
        self.seen = list(seen)

    async def play(self, jobs: JobsService, operations: list[Operation]) -> Player:
        """Play the operations in one transaction, and return the player as it is when that has committed."""

        async def function(tx: JobTransaction) -> Player:
            player = Player(self.handles, self.seen)
            for name, arguments in operations:
                await player._play(tx, name, arguments)
            return player

        return await jobs.transact(function)

    async def _play(self, tx: JobTransaction, name: str, arguments: dict[str, Any]) -> None:
        try:
            result = await self._do(tx, name, dict(arguments))
        except JobsError as error:
            result = (type(error).__name__, error.type, error.id)
        self.seen.append((name, result))

    async def _do(self, tx: JobTransaction, name: str, arguments: dict[str, Any]) -> Any:
        if name == "look":
            return await self._look(tx)
        if name in ("accept", "accept_many"):
            if name == "accept":
                job = await tx.accept(T1, **arguments)
                came = [] if job is None else [job]
            else:
                came = await tx.accept_many(T1, **arguments)
            self.handles += came
            return [observable(job) for job in came]
        if "handle" in arguments:
            place = arguments.pop("handle")
            if not self.handles:
                return "no handle yet"
            handle = self.handles[place % len(self.handles)]
            method = getattr(tx, name.removesuffix("_running"))
            return observable(await method(handle, **arguments))
        result = await getattr(tx, name)(T1, arguments.pop("id"), **arguments)
        return observable(result) if isinstance(result, Job) else result

    async def _look(self, tx: JobTransaction) -> Any:
        return (
            sorted(map(observable, await tx.list(T1)), key=repr),
            await tx.pending_count(T1),
            await tx.pending_count(T1, due_by=LONG_AGO),
            sorted(map(str, await tx.active_ids(T1))),
        )


def observable(job: Job) -> tuple[Any, ...]:
    """Return all of a job but its seq and lock."""
    return (
        type(job).__name__,
        job.type,
        job.id,
        job.state,
        job.outcome,
        job.data,
        job.priority,
        job.run_at,
        bool(job.resubmit),
        job.cancel,
    )


async def play(jobs: JobsService, groups: list[list[Operation]]) -> list[Any]:
    """Play each group in one transaction, and return all that was seen, and the order of the queue at the end."""
    await jobs.set_type_timeout(T1, TIMEOUT)
    player = Player()
    look: Operation = ("look", {})
    for group in [*groups, [look]]:
        player = await player.play(jobs, group)
    return [*player.seen, await drained(jobs, due_by=FAR_AWAY)]
