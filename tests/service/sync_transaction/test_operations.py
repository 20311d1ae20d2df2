"""The operations of `within`: they do what those of `transact` do."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings

from jobs_service import JobsService, JobTransaction, WorkerConflict
from jobs_service.service.transactions import WithinTransaction
from tests.service.sequences import OPERATIONS, Operation, Player, play
from tests.service.support import FAR_AWAY, J1, J2, T1, accepted, contents, drained, listed
from tests.service.sync_transaction.support import begun, committed, failed, taken

# the operations


def test_every_operation_is_there_with_the_arguments_of_its_coroutine() -> None:
    names = [name for name in vars(JobTransaction) if not name.startswith("_")]
    assert len(names) > 20
    for name in set(names) - {"kv"}:
        plain, coroutine = getattr(WithinTransaction, name), getattr(JobTransaction, name)
        assert inspect.signature(plain).parameters == inspect.signature(coroutine).parameters, name
        assert not inspect.iscoroutinefunction(plain), name
        assert plain.__doc__
        assert plain.__name__ == name


async def test_jobs_are_enqueued_for_handlers(quiet: JobsService) -> None:
    @quiet.handler("mail", timeout=11)
    async def mail(args: dict[str, int]) -> None: ...

    with committed(quiet) as tx:
        first = tx.enqueue(mail, {"x": 1}, unique=True)
        assert tx.enqueue(mail, {"x": 1}, unique=True).id == first.id
        other = tx.enqueue(mail, {"x": 2}, id="named", priority=-1)
        assert (first.type, other.id, other.data) == ("mail", "named", {"x": 2})
    assert await quiet.get_type_timeout("mail") == 11
    assert await drained(quiet, "mail") == ["named", first.id]


@pytest.mark.parametrize("conflict", ["key", "range", "read", None])
async def test_what_was_read_of_own_keys_decides_over_conflicts(quiet: JobsService, conflict: str | None) -> None:
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        tx.kv.snapshot.get(b"own/a")
        if conflict == "key":
            tx.kv.add_read_conflict_key(b"own/a")
        elif conflict == "range":
            tx.kv.add_read_conflict_range(b"own/", b"own/b")
        elif conflict == "read":
            tx.kv.get(b"own/a")
        tx.add(T1, J1)
    with committed(quiet) as tx:
        tx.kv[b"own/a"] = b"changed"
    if conflict is None:
        application.commit()
    else:
        with pytest.raises(application.conflict):
            application.commit()
    assert len(await listed(quiet)) == (conflict is None)


async def test_a_job_that_another_has_taken_meanwhile_is_a_conflict(quiet: JobsService) -> None:
    await quiet.add(T1, J1)
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        worker = taken(tx)
    other = await accepted(quiet)
    with pytest.raises(application.conflict):
        application.commit()
    with pytest.raises(WorkerConflict), committed(quiet) as tx:
        tx.finish(worker)
    await other.finish()


async def test_a_better_job_that_is_scheduled_meanwhile_is_a_conflict(quiet: JobsService) -> None:
    await quiet.add(T1, J1, priority=1, run_at=FAR_AWAY)
    application = begun(quiet)
    with quiet.within(application.tr) as tx:
        assert tx.accept(T1, due_by=FAR_AWAY) is not None
    await quiet.add(T1, J2, priority=0, run_at=FAR_AWAY)
    with pytest.raises(application.conflict):
        application.commit()


# any sequence of operations


class Awaited:
    """The operations of a block as coroutines, for the player."""

    def __init__(self, tx: WithinTransaction) -> None:
        self._tx = tx

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def operation(*arguments: Any, **keywords: Any) -> Any:
            return getattr(self._tx, name)(*arguments, **keywords)

        return operation


class Plain:
    """A service whose `transact` takes effect in a block, after one that fails and is committed all the same."""

    def __init__(self, jobs: JobsService) -> None:
        self._jobs = jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    async def transact(self, function: Callable[[Awaited], Awaitable[Player]]) -> Player:
        before = await contents(self._jobs)
        failing = begun(self._jobs)
        with failed(self._jobs, failing) as tx:
            await function(Awaited(tx))
        failing.commit()
        assert await contents(self._jobs) == before
        with committed(self._jobs) as tx:
            return await function(Awaited(tx))


async def play_both(groups: list[list[Operation]]) -> None:
    seen = []
    for plain in (False, True):
        async with JobsService("memory:", supervise=False) as jobs:
            seen.append(await play(cast(JobsService, Plain(jobs)) if plain else jobs, groups))
    assert seen[1] == seen[0]


@pytest.mark.unmeasured
@settings(max_examples=60, deadline=None)
@given(first=OPERATIONS, second=OPERATIONS)
def test_any_operations_in_blocks_do_what_they_do_in_the_services_transactions_and_nothing_when_a_block_raises(
    first: list[Operation], second: list[Operation]
) -> None:
    asyncio.run(play_both([first, second]))
