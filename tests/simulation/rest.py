"""What is left when nobody has anything to do any more: nothing of what users have done, in services or the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import fdb.tuple

from jobs_service import JobsService
from jobs_service.actors import activity_monitor
from jobs_service.actors.type_server import TypeServer
from jobs_service.testing import Process, SimulatedStore
from tests.simulation.checks import held_after
from tests.simulation.rows import PREFIX, names_in, section

if TYPE_CHECKING:
    from tests.simulation.run import Run

_LONGEST: Final = 220.0
"""Seconds after which all types are at rest whose rows of changes are old soon."""
_PAUSE: Final = 4.0
_SOON: Final = 10.0

_PASSING: Final = ("DATA", "READY", "SCHEDULED", "ACTIVITY", "EXPIRING", "FAILED", "RETRYING")
"""The families of rows of which there is none where there is no job."""

_AWAKE: Final = ("AWAKE", "CHANGES", "LAST")
"""Those that somebody has still to look at."""

_UNNAMED: Final = 4
"""Tasks without a name that a process of the simulation has: its own groups, and one for each workload that settles."""

_OF_TREE: Final = Counter(("JobsService", "keyspace", "monitors", "notifiers", "type server", "type server/sampler"))
"""The tasks of a supervisor tree that looks after nothing."""


async def until_at_rest(run: Run) -> None:
    """Wait until nothing is left of types whose jobs are gone; complain of what stays, in the store and in services."""
    until = run.world.loop.time() + _LONGEST
    while (left := [*_left(run)]) and run.world.loop.time() < until:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(_PAUSE)
    for what in left:
        run.complain(f"at rest: {what} after {_LONGEST:.0f} s in which nobody did anything")


def _left(run: Run) -> Iterator[str]:
    """Yield what is still there."""
    # Elsewhere rows of changes are in doubt for so long that their types sleep only later.
    sleep = activity_monitor._UNREAD_FOR < _SOON
    versions = run.world.cluster.versions
    version = versions.enter()
    for family in _PASSING + _AWAKE * sleep:
        head = section(family)
        # Nothing, or the type alone, is behind the rows that are about all others.
        for key, _ in versions.scan_at(version, head + b"\x00", head + b"\xff", False):
            if family == "AWAKE" or len(names_in(key)) > 1:
                yield f"there is a row of {family}: {key[len(PREFIX) :]!r}"
    versions.leave(version)
    for process, jobs in run.services.items():
        for what in _held(run, process, jobs, sleep):
            yield f"{process} holds {what}"


def _held(run: Run, process: Process, jobs: JobsService, sleep: bool) -> Iterator[str]:
    """Yield what an open service holds that nobody uses."""
    yield from held_after(jobs)
    server = None if jobs._tree.root is None else jobs._tree.root.child("type server")
    if not isinstance(server, TypeServer):
        return
    types = [fdb.tuple.unpack(type)[0] for type in server._monitors]
    if types and sleep:
        yield f"activity monitors of {types}"
    if server._notifiers:
        yield f"notifiers of {[keys.type for keys in server._notifiers]}"
    if types or server._notifiers:
        return
    for what, found in {
        "types are sampled": sum(map(len, server._sampler._by_tick.values())),
        "types are idle": len(server._idle) + len(server._unused) + len(server._subscribed),
        "attempts to accept are shared": len(jobs._operations._accepts),
        "jobs were subscribed to just now": sum(map(len, jobs._hub._fresh.values())),
    }.items():
        if found:
            yield f"{what}: {found}"
    tasks = Counter(task.get_name() for task in run.world.loop.living_tasks() if task.owner is process)
    unnamed = {name for name in tasks if name.startswith("task ")}
    others = {name for name in tasks if name.startswith(str(process))}
    left = tasks - _OF_TREE - Counter({name: tasks[name] for name in unnamed | others | {"process monitor"}})
    if left or len(unnamed) > _UNNAMED:
        yield f"the tasks {dict(tasks)}"
    if isinstance(jobs.store, SimulatedStore):
        groups = run.world.cluster._watches.values()
        watches = sum(store is jobs.store for group in groups for store in group.values())
    else:
        watches = jobs.store.metrics()["watches"]
    if watches != 1:  # the type server's
        yield f"{watches} watches"
