"""Notes every operation of the layer on the transaction that it is done in, for the simulation's history.

While `recording()` is entered, the operations are found, under their own names, inside wrappers that append an Entry to
`transaction.journal`; a transaction that has none is left alone. What is noted is what has really happened: the job's
record after the call, or the class of the exception.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from jobs_service.layer import creation, far_ahead, queue, running_jobs, type_settings
from jobs_service.layer.creation import Spec
from jobs_service.layer.keyspace import TypeKeys, pack_id
from jobs_service.layer.record import Entry as Touched
from jobs_service.layer.record import JobSnapshot, NextRun, Record
from jobs_service.layer.running_jobs import LockStatus, RunReport
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import UNSET, JobId, Outcome
from jobs_service.runner import execution
from jobs_service.store.sync_transaction import HeldBack
from tests.simulation.entry import UNOBSERVED, Entry
from tests.simulation.journal_reads import readers
from tests.simulation.model_job import Change, Said

Operation: TypeAlias = Callable[..., Awaitable[Any]]

Place: TypeAlias = tuple[TypeKeys, JobId, bytes]
"""Where a job is: its type's keys, its id, and its id as packed."""


@contextmanager
def recording() -> Iterator[None]:
    """Note operations until left; then what was in place before is in place again."""
    wrappers: list[tuple[Any, str, Callable[[Any], Any]]] = [
        (creation, "add", lambda original: _on_one_job("add", original, _of_add)),
        (creation, "add_many", _add_many),
        (creation, "enqueue_many", _enqueue_many),
        (creation, "resubmit", lambda original: _on_one_job("resubmit", original, _of_resubmit)),
        (creation, "enqueue", lambda original: _on_one_job("enqueue", original, _of_enqueue)),
        (creation, "remove", lambda original: _on_one_job("remove", original, _as_they_are)),
        (running_jobs, "update", lambda original: _on_one_job("update", original, _of_update)),
        (running_jobs, "finish", lambda original: _on_one_job("finish", original, _of_finish)),
        (running_jobs, "resubmit", lambda original: _on_one_job("worker resubmit", original, _of_worker_resubmit)),
        (running_jobs, "crash", lambda original: _on_one_job("crash", original, _of_crash)),
        (running_jobs, "stop", lambda original: _on_one_job("stop", original, _of_stop)),
        (running_jobs, "give_up", lambda original: _on_one_job("give up", original, _as_they_are)),
        (running_jobs, "beat", _beat),
        (queue, "make_ready", lambda original: _moving("make ready", original)),
        (far_ahead, "set_right", lambda original: _moving("set right", original)),
        (queue, "accept", _accept),
        (queue, "_schedule_again", _put_back),
        (running_jobs, "re_enqueue", _re_enqueue),
        (running_jobs, "take_from", _take_from),
        (creation, "remove_expired", _remove_expired),
        (type_settings, "pause", lambda original: _on_a_type("pause", original)),
        (type_settings, "resume", lambda original: _on_a_type("resume", original)),
        (type_settings, "set_retention", lambda original: _on_a_type("set retention", original)),
        (type_settings, "set_type_timeout", lambda original: _on_a_type("set timeout", original)),
        (type_settings, "clear_type_timeout", lambda original: _on_a_type("clear timeout", original)),
        (UnitOfWork, "fitting", _fitting),
        (UnitOfWork, "__init__", _beginning),
        *readers(_journal, _now),
    ]
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in wrappers]
    try:
        for owner, name, wrapper in wrappers:
            setattr(owner, name, wrapper(getattr(owner, name)))
        _forget_ends()
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
        _forget_ends()


def _forget_ends() -> None:
    """Clear the ends that the runner keeps: they name the operation that was in place when they were made."""
    execution._succeeded_with_nothing.cache_clear()


# Arguments as plain values


def _as_they_are(*arguments: Any) -> tuple[Any, ...]:
    return arguments


def _change(spec: Spec) -> Change:
    return Change(
        UNSET if spec.json is None else spec.json,
        UNSET if spec.priority is None else spec.priority,
        spec.run_at,
        spec.limits,
    )


def _of_add(spec: Spec, if_exists: str) -> tuple[Any, ...]:
    return _change(spec), if_exists


def _of_resubmit(spec: Spec) -> tuple[Any, ...]:
    return (_change(spec),)


def _of_enqueue(spec: Spec, rule: str, timeout: float, unmade: object = None) -> tuple[Any, ...]:
    return _change(spec), rule, timeout, spec.unique_for


def _of_update(
    lock: bytes, json: bytes | None, progress: bytes | None = None, healthy: bool = False
) -> tuple[Any, ...]:
    return lock, UNSET if json is None else json, progress, healthy


def _of_finish(
    lock: bytes, json: bytes | None, outcome: Outcome, told: RunReport = running_jobs.NOTHING
) -> tuple[Any, ...]:
    return lock, UNSET if json is None else json, outcome, Said(*told)


def _of_crash(lock: bytes, told: RunReport, run_at: float, asked: NextRun | None = None) -> tuple[Any, ...]:
    return lock, Said(*told), run_at, asked


def _of_stop(
    lock: bytes, run_at: float | None, max_history: int | None = None, reason: str = "", anew: bool = False
) -> tuple[Any, ...]:
    return lock, run_at, max_history, reason, anew


def _of_worker_resubmit(lock: bytes, spec: Spec) -> tuple[Any, ...]:
    return lock, _change(spec)


# Wrappers


def _journal(unit: UnitOfWork) -> list[Entry] | None:
    return getattr(_underlying(unit), "journal", None)


def _underlying(unit: UnitOfWork) -> Any:
    """Return the transaction that a unit's writes end in."""
    transaction = unit.transaction
    return transaction._transaction if isinstance(transaction, HeldBack) else transaction


def _beginning(original: Callable[..., None]) -> Callable[..., None]:
    """Note what the clock says when a unit of work begins, whatever the unit takes for the time."""

    def noted(unit: UnitOfWork, transaction: Any, *arguments: Any) -> None:
        original(unit, transaction, *arguments)
        noted_on = _underlying(unit)
        process = getattr(noted_on, "process", None)
        if process is not None:
            # A transaction of an application may have several units, one after the other or one in another.
            noted_on.__dict__.setdefault("clocks", {})[id(unit)] = process.clock.wall_time()

    return noted


def _now(unit: UnitOfWork) -> float:
    """Return the time of a unit of work by the clock of its process; by the unit's own where there is no process."""
    noted_on = _underlying(unit)
    if getattr(noted_on, "process", None) is None:
        return unit.now
    now: float = noted_on.clocks[id(unit)]
    return now


def _on_one_job(name: str, original: Operation, plain: Callable[..., tuple[Any, ...]]) -> Operation:
    async def noted(unit: UnitOfWork, place: Place, *arguments: Any) -> Any:
        journal = _journal(unit)
        if journal is None:
            return await original(unit, place, *arguments)
        try:
            given = await original(unit, place, *arguments)
        except Exception as error:
            journal.append(Entry(name, place[0], place[1], plain(*arguments), _now(unit), error.__class__))
            raise
        result = given.record if isinstance(given, Touched | JobSnapshot) else given
        journal.append(Entry(name, place[0], place[1], plain(*arguments), _now(unit), result))
        return given

    return noted


def _beat(original: Operation) -> Operation:
    async def noted(unit: UnitOfWork, held: Sequence[tuple[Place, bytes]]) -> list[LockStatus]:
        found: list[LockStatus] = await original(unit, held)
        journal = _journal(unit)
        if journal is not None:
            for (place, lock), holding in zip(held, found, strict=True):
                record = unit.entries[place[0].data + place[2]].record
                result = holding if holding is LockStatus.TAKEN or record is None else record
                if record is not None and record.cancel != (holding is LockStatus.CANCELED):
                    result = holding
                journal.append(Entry("beat", place[0], place[1], (lock,), _now(unit), result))
        return found

    return noted


def _remove_expired(original: Operation) -> Operation:
    async def noted(unit: UnitOfWork, keys: TypeKeys, until: float, limit: int) -> int:
        journal = _journal(unit)
        if journal is None:
            return await original(unit, keys, until, limit)  # type: ignore[no-any-return]
        there = {entry for entry in unit.entries.values() if entry.record is not None}
        known = set(unit.entries.values())
        removed: int = await original(unit, keys, until, limit)
        result = [
            (entry.id, None)
            for entry in unit.entries.values()
            if entry.record is None and (entry in there or (entry not in known and entry.changed))
        ]
        journal.append(Entry("expire", keys, None, (until, limit), _now(unit), result))
        return removed

    return noted


def _add_many(original: Operation) -> Operation:
    async def noted(
        unit: UnitOfWork, keys: TypeKeys, jobs: Sequence[Place], specs: Sequence[Spec], if_exists: str
    ) -> list[Touched]:
        journal = _journal(unit)
        try:
            added: list[Touched] = await original(unit, keys, jobs, specs, if_exists)
        except Exception as error:
            if journal is not None:
                wanted = [(job[1], _change(spec)) for job, spec in zip(jobs, specs, strict=True)]
                journal.append(Entry("add many", keys, None, (wanted, if_exists), _now(unit), error.__class__))
            raise
        if journal is not None:
            # Of a job that is in the list more than once, only what it is in the end can be seen.
            last = {entry.id: position for position, entry in enumerate(added)}
            for position, (entry, spec) in enumerate(zip(added, specs, strict=True)):
                seen = entry.record if last[entry.id] == position else UNOBSERVED
                journal.append(Entry("add", keys, entry.id, (_change(spec), if_exists), _now(unit), seen))
        return added

    return noted


def _enqueue_many(original: Operation) -> Operation:
    async def noted(unit: UnitOfWork, places: Sequence[Place], *arguments: Any) -> list[JobSnapshot]:
        journal = _journal(unit)
        before = 0 if journal is None else len(journal)
        try:
            return await original(unit, places, *arguments)  # type: ignore[no-any-return]
        except Exception as error:
            if journal is not None and len(journal) > before:
                # Each of them is noted by itself; all are undone.
                done, journal[before:] = journal[before:], []
                journal.append(Entry("enqueue many", places[0][0], None, (done,), _now(unit), error.__class__))
            raise

    return noted


def _moving(name: str, original: Operation) -> Operation:
    async def noted(unit: UnitOfWork, keys: TypeKeys, *arguments: Any) -> Any:
        journal = _journal(unit)
        if journal is None:
            return await original(unit, keys, *arguments)
        before = {entry: entry.record for entry in unit.entries.values()}
        try:
            moved = await original(unit, keys, *arguments)
        except Exception as error:
            journal.append(Entry(name, keys, None, arguments, _now(unit), error.__class__))
            raise
        result = [
            (entry.id, entry.record)
            for entry in unit.entries.values()
            if (entry.record is not before[entry] if entry in before else entry.changed)
        ]
        if len(result) > 1:
            result.sort(key=_order_in_transaction)
        journal.append(Entry(name, keys, None, arguments, _now(unit), result))
        return moved

    return noted


def _order_in_transaction(moved: tuple[JobId, Record | None]) -> bytes:
    """Return what grows with every move of a transaction."""
    seq = None if moved[1] is None else moved[1].seq
    order: bytes = getattr(seq, "order", b"")
    return order


def _accept(original: Operation) -> Operation:
    async def noted(unit: UnitOfWork, keys: TypeKeys, terms: queue.AcceptTerms) -> tuple[list[Touched], bool]:
        journal = _journal(unit)
        if journal is None:
            return await original(unit, keys, terms)  # type: ignore[no-any-return]
        before = len(journal)
        try:
            taken, more = await original(unit, keys, terms)
        except Exception as error:
            journal.append(Entry("accept", keys, None, (terms,), _now(unit), error.__class__))
            raise
        # What it puts back it moves after what it has taken.
        back = journal.pop() if len(journal) > before and journal[-1].name == "put back" else None
        result = [(entry.id, entry.record) for entry in taken]
        journal.append(Entry("accept", keys, None, (terms,), _now(unit), result))
        if back is not None:
            back.arguments = (terms,)
            journal.append(back)
        return taken, more

    return noted


def _put_back(original: Operation) -> Operation:
    """Note the ready jobs that are not due of which an accept has met too many: it has them wait for their time."""

    async def noted(unit: UnitOfWork, keys: TypeKeys, early: list[Any]) -> None:
        journal = _journal(unit)
        if journal is None:
            await original(unit, keys, early)
            return
        noted_before = len(journal)
        before = {entry: entry.record for entry in unit.entries.values()}
        await original(unit, keys, early)
        del journal[noted_before:]  # Whether all of them fitted says nothing of those that were taken.
        result = [
            (entry.id, entry.record)
            for entry in unit.entries.values()
            if (entry.record is not before[entry] if entry in before else entry.changed)
        ]
        journal.append(Entry("put back", keys, None, (), _now(unit), sorted(result, key=_order_in_transaction)))

    return noted


def _re_enqueue(original: Operation) -> Operation:
    async def noted(
        unit: UnitOfWork, keys: TypeKeys, until: bytes, limit: int, own: Container[bytes] = ()
    ) -> running_jobs.TaskPart:
        journal = _journal(unit)
        if journal is None:
            return await original(unit, keys, until, limit, own)  # type: ignore[no-any-return]
        try:
            lost: running_jobs.TaskPart = await original(unit, keys, until, limit, own)
        except Exception as error:
            journal.append(Entry("lost", keys, None, (until, limit), _now(unit), error.__class__))
            raise
        touched = [unit.entries[keys.data + pack_id(id)] for id in lost.ids]
        result = [(entry.id, _as_it_was(unit, entry)) for entry in touched]
        journal.append(Entry("lost", keys, None, (until, limit), _now(unit), result))
        return lost

    return noted


def _take_from(original: Operation) -> Operation:
    async def noted(unit: UnitOfWork, jobs: Sequence[Place], dead: Collection[bytes]) -> tuple[list[Touched], int]:
        taken: list[Touched]
        taken, dealt_with = await original(unit, jobs, dead)
        journal = _journal(unit)
        if journal is not None:
            for entry in taken:
                journal.append(Entry("bury", entry.keys, entry.id, (dead,), _now(unit), _as_it_was(unit, entry)))
        return taken, dealt_with

    return noted


def _as_it_was(unit: UnitOfWork, entry: Touched) -> Record | None:
    """Return a job's record; the last one if the job has left with its end."""
    return entry.record or unit._left.get(entry)


def _on_a_type(name: str, original: Operation) -> Operation:
    async def noted(unit: UnitOfWork, keys: TypeKeys, *arguments: Any) -> None:
        journal = _journal(unit)
        try:
            await original(unit, keys, *arguments)
        except Exception as error:
            if journal is not None:
                journal.append(Entry(name, keys, None, arguments, _now(unit), error.__class__))
            raise
        if journal is not None:
            journal.append(Entry(name, keys, None, arguments, _now(unit), None))

    return noted


def _fitting(original: Callable[[UnitOfWork, list[Touched]], list[Touched]]) -> Callable[..., list[Touched]]:
    def noted(unit: UnitOfWork, entries: list[Touched]) -> list[Touched]:
        fitting = original(unit, entries)
        if len(fitting) < len(entries):
            journal = _journal(unit)
            if journal is not None:
                sizes = (len(entries), len(fitting))
                journal.append(Entry("cut", entries[0].keys, None, sizes, _now(unit), None))
        return fitting

    return noted
