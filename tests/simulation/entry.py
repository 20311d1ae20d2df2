"""What is noted of one operation of the layer, and the table of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from jobs_service.layer.keyspace import TypeKeys
from jobs_service.model import JobId, JobType


class Unobserved:
    """The result of an operation of which nobody has seen what it gave."""


UNOBSERVED: Final = Unobserved()


@dataclass(slots=True)
class Entry:
    """One operation.

    Attributes:
        name: see the table.
        keys: of the type.
        id: of the job, None for operations on a type or its queue.
        arguments: see the table.
        now: what the clock of its process said when the unit of work began, seconds since the epoch.
        result: see the table; always an exception's class when the operation has raised.

    | name              | arguments                                   | result                                       |
    |-------------------|---------------------------------------------|----------------------------------------------|
    | add               | Change, if_exists                           | the job's record afterwards, or UNOBSERVED   |
    | add many          | [(id, Change), ...], if_exists              | only noted when it has raised                |
    | enqueue many      | the entries of all that it has tried        | only noted when it has raised                |
    | resubmit          | Change                                      | the job's record afterwards                  |
    | remove            | force                                       | Removal                                      |
    | enqueue           | Change, rule, seconds, unique_for           | the job's record afterwards                  |
    | update            | lock, JSON or UNSET, progress, healthy      | the job's record afterwards                  |
    | finish            | lock, JSON or UNSET, outcome, Said          | the job's record afterwards                  |
    | crash             | lock, Said, run_at, the next run it asked for | the job's record afterwards                  |
    | beat              | lock                                        | the job's record afterwards, or TAKEN        |
    | worker resubmit   | lock, Change                                | the job's record afterwards                  |
    | stop              | lock, run_at, most history, why, anew       | the job's record afterwards                  |
    | give up           | why                                         | the job's record afterwards                  |
    | make ready        | until, limit                                | [(id, record afterwards), ...]: those moved  |
    | set right         | ids, packed                                 | [(id, record afterwards), ...]: those moved  |
    | accept            | pending.Terms                               | [(id, record afterwards), ...]: those taken  |
    | put back          | the accept's Terms                          | [(id, record afterwards), ...]: those moved  |
    | lost              | until (a versionstamp), limit               | [(id, record afterwards), ...]: those lost   |
    | bury              | the dead instances                          | the job's record afterwards                  |
    | expire            | until, limit                                | [(id, None), ...]: those removed             |
    | set timeout       | seconds                                     | None                                         |
    | clear timeout     |                                             | None                                         |
    | pause, resume     |                                             | None                                         |
    | set retention     | Retention                                   | None                                         |
    | saw job           |                                             | the job's record                             |
    | saw list          | whether of all types, state                 | [(type, id, record), ...]                    |
    | saw running       |                                             | [id, ...]                                    |
    | saw count         | due_by (seconds), limit                     | how many are pending                         |
    | saw paused        |                                             | whether nobody may accept                    |
    | saw timeout       |                                             | seconds                                      |
    | saw types         |                                             | [type, ...]                                  |
    | cut               | how many jobs, how many of them fit         | None; it concerns the next entry of a queue  |
    """

    name: str
    keys: TypeKeys
    id: JobId | None
    arguments: tuple[Any, ...]
    now: float
    result: Any

    @property
    def type(self) -> JobType:
        """The job's type."""
        return self.keys.type
