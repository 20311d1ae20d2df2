"""Notes what a transaction is told of jobs and types that it does not change, for the history: see `journal`.

These are all that `transact` and blocks of plain code have to read by. What a committed transaction was told must have
been so at its commit, behind its own operations that came before, whoever else was at work meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

from jobs_service.arguments import to_seconds
from jobs_service.errors import JobNotFound, NoTypeTimeout
from jobs_service.layer.keyspace import TypeKeys
from jobs_service.layer.reads import Listing
from jobs_service.layer.transaction import JobTransaction
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import Job, JobType
from tests.simulation.entry import Entry

_SAYS_SOMETHING: Final = (JobNotFound, NoTypeTimeout)
"""What refuses a read and says something of jobs and types."""

_ANY: Final = "any"
"""Names a type where all are asked for."""

Note = Callable[[str, TypeKeys, Any, tuple[Any, ...], Any], None]
"""Notes a read: its name, the type's keys, the job's id, the arguments, and the result."""


def readers(
    journal_of: Callable[[Any], list[Entry] | None], now_of: Callable[[Any], float]
) -> Sequence[tuple[Any, str, Callable[[Any], Any]]]:
    """Return the wrappers of all that reads: the owner, the name, and what makes the wrapper.

    Args:
        journal_of: returns the journal of a unit of work.
        now_of: returns its time.
    """

    def noting(tx: JobTransaction) -> tuple[Note | None, list[Entry]]:
        journal = journal_of(tx._unit) if isinstance(tx._unit, UnitOfWork) else None  # it may have ended
        if journal is None:
            return None, []

        def note(name: str, keys: TypeKeys, id: Any, arguments: tuple[Any, ...], result: Any) -> None:
            journal.append(Entry(name, keys, id, arguments, now_of(tx._unit), result))

        return note, journal

    def one(name: str, arguments_of: Callable[..., tuple[Any, ...]]) -> Callable[[Any], Any]:
        """A read of a type, or of a job of it, with one answer."""

        def wrapper(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def read(tx: JobTransaction, *given: Any, **options: Any) -> Any:
                note, _ = noting(tx)
                if note is None:
                    return await original(tx, *given, **options)
                try:
                    found = await original(tx, *given, **options)
                except _SAYS_SOMETHING as error:
                    keys, id, arguments = arguments_of(tx, *given, **options)
                    note(name, keys, id, arguments, error.__class__)
                    raise
                keys, id, arguments = arguments_of(tx, *given, **options)
                note(name, keys, id, arguments, found._record if isinstance(found, Job) else found)
                return found

            return read

        return wrapper

    async def as_listed(
        tx: JobTransaction, type: JobType | None, state: Any, jobs: AsyncIterator[Job]
    ) -> AsyncIterator[Job]:
        note, journal = noting(tx)
        before, found = len(journal), []
        async for job in jobs:
            found.append((job.type, job.id, job._record))
            yield job
        # Who changes jobs before the end sees some of that, or not.
        if note is not None and len(journal) == before:
            note("saw list", tx._keys(_ANY if type is None else type), None, (type is None, state), found)

    def listing(original: Callable[..., Listing]) -> Callable[..., Listing]:
        def read(tx: JobTransaction, type: JobType | None = None, **options: Any) -> Listing:
            return Listing(as_listed(tx, type, options.get("state"), aiter(original(tx, type, **options))))

        return read

    singles = {
        "get": one("saw job", lambda tx, type, id: (tx._keys(type), tx._place(type, id)[1], ())),
        "active_ids": one("saw running", lambda tx, type: (tx._keys(type), None, ())),
        "paused": one("saw paused", lambda tx, type: (tx._keys(type), None, ())),
        "get_type_timeout": one("saw timeout", lambda tx, type: (tx._keys(type), None, ())),
        "types": one("saw types", lambda tx: (tx._keys(_ANY), None, ())),
        "pending_count": one("saw count", _of_count),
    }
    own = [(JobTransaction, name, wrapper) for name, wrapper in singles.items()]
    return [*own, (JobTransaction, "list", listing)]


def _of_count(tx: JobTransaction, type: Any, *, due_by: Any = None, limit: int | None = None) -> Any:
    return tx._keys(type), None, (to_seconds(due_by, "due_by"), limit)
