"""The catalogue of operations, from which all suites take them that go by the table of operations.

`docs/semantics.md` has that table: what each operation does to a job in each state. `tests/docs/test_semantics.py`
tries each of its cells, as `tests/service/operations/test_table.py` does in all ways. The simulation counts its visits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeAlias

from jobs_service import JobsService, RunningJob

TYPE: Final = "t1"
ID: Final = "j1"

Attempt: TypeAlias = Callable[[JobsService, RunningJob], Awaitable[object]]
"""Tries an operation on the job TYPE, ID; its worker is the second argument, perhaps not any more."""

COLUMNS: Final = ("no type", "missing", "pending", "running", "flagged", "canceled", "elsewhere", "finished")
"""What a job can be before an operation: running ones are `flagged` when they are to run again, and `elsewhere` when
the caller does not hold their lock."""

_ANY: Final = ("missing", "pending", "running", "flagged", "canceled", "finished")
_TO_ADD: Final = ("no type", *_ANY)
_OF_WORKER: Final = (*_ANY, "elsewhere")
_RUNNING: Final = ("running", "flagged", "canceled")


class Operation(NamedTuple):
    """One operation on one job.

    Attributes:
        simulated: its name in the simulation's history; several rows may be one operation there.
        columns: what its job may be before it.
        row: its row in the table of `docs/semantics.md`; None for one that no application calls.
        attempt: tries it; None where time does it, not a call.
    """

    simulated: str
    columns: tuple[str, ...]
    row: str | None = None
    attempt: Attempt | None = None


async def _nothing(tx: Any) -> None:
    """The effects of `finish_with`."""


CATALOGUE: Final = (
    Operation("add", _TO_ADD, "add", lambda jobs, _: jobs.add(TYPE, ID, "new")),
    Operation(
        "add resubmit",
        _TO_ADD,
        'add(if_exists="resubmit")',
        lambda jobs, _: jobs.add(TYPE, ID, "new", if_exists="resubmit"),
    ),
    Operation(
        "add ignore", _TO_ADD, 'add(if_exists="ignore")', lambda jobs, _: jobs.add(TYPE, ID, "new", if_exists="ignore")
    ),
    Operation("resubmit", _ANY, "resubmit", lambda jobs, _: jobs.resubmit(TYPE, ID, data="new")),
    Operation("remove", _ANY, "remove", lambda jobs, _: jobs.remove(TYPE, ID)),
    Operation("remove force", _ANY, "remove(force=True)", lambda jobs, _: jobs.remove(TYPE, ID, force=True)),
    Operation("accept", ("pending",), "accept", lambda jobs, _: jobs.accept(TYPE, timeout=0)),
    Operation("update", _OF_WORKER, "job.update", lambda _, job: job.update("new")),
    Operation("update", _OF_WORKER, "job.progress", lambda _, job: job.progress(1, 2)),
    Operation("finish", _OF_WORKER, "job.finish", lambda _, job: job.finish("new")),
    Operation("finish", _OF_WORKER, "job.finish_with", lambda _, job: job.finish_with(_nothing)),
    Operation("worker resubmit", _OF_WORKER, "job.resubmit", lambda _, job: job.resubmit()),
    Operation("stop", _OF_WORKER, "job.release", lambda _, job: job.release()),
    Operation("lost", _RUNNING, "its worker is lost"),
    Operation("enqueue", _ANY),
    Operation("enqueue unique", _ANY),
    Operation("crash", _OF_WORKER),
    Operation("beat", _OF_WORKER),
    Operation("make ready", ("pending",)),
    Operation("expire", ("finished",)),
)

CELLS: Final = frozenset((each.simulated, column) for each in CATALOGUE for column in each.columns)
"""All cells that the simulation is to visit: operation, and what the job is before it."""
