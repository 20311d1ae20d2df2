"""What blocks refuse: wrong transactions, services that are not open, blocks that are not entered or have ended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jobs_service import JobsError, JobsService, JobTransaction, StoreError
from tests.service.support import J1, T1, TIMEOUT, listed, own_keys
from tests.service.sync_transaction.support import APPLICATIONS, begun
from tests.stores import KINDS, StoreKind


def one_line(caught: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


async def test_a_block_is_of_no_use_before_and_after(quiet: JobsService) -> None:
    application = begun(quiet)
    within = quiet.within(application.tr)
    kv = within.kv
    uses: list[Callable[[], object]] = [
        lambda: within.add(T1, J1),
        lambda: within.list(T1),
        lambda: within.resubmit(T1, J1),
        lambda: kv.get(b"own/a"),
        lambda: kv.set(b"own/a", b"1"),
        lambda: kv.snapshot.get(b"own/a"),
        lambda: within.kv.clear(b"own/a"),
        lambda: within.__exit__(None, None, None),
    ]
    for use in uses:
        with pytest.raises(JobsError, match="not entered yet") as caught:
            use()
        one_line(caught)
    with within as tx:
        assert tx is within
    for use in uses:
        with pytest.raises(JobsError, match="has ended") as caught:
            use()
        one_line(caught)
    application.commit()
    assert await listed(quiet) == []
    assert await own_keys(quiet) == {}


async def test_the_services_own_transaction_functions_have_no_blocks(quiet: JobsService) -> None:
    application = begun(quiet)

    async def function(tx: JobTransaction) -> None:
        with quiet.within(application.tr) as inner:
            inner.add(T1, J1)

    with pytest.raises(StoreError, match="the service itself") as caught:
        await quiet.transact(function)
    one_line(caught)
    with quiet.within(application.tr) as tx:
        tx.add(T1, J1)
    application.commit()


@pytest.mark.parametrize("wrong", [None, "tr", object(), JobTransaction, b"\xff" * 10_000])
async def test_what_is_no_transaction_of_the_store_is_refused(quiet: JobsService, wrong: object) -> None:
    with pytest.raises(StoreError) as caught:
        quiet.within(wrong)
    assert len(one_line(caught)) < 250


async def test_a_transaction_of_another_memory_store_or_one_that_has_ended_is_refused() -> None:
    async with JobsService("memory:", supervise=False) as mine, JobsService("memory:", supervise=False) as other:
        with pytest.raises(StoreError, match="another memory: store"):
            mine.within(begun(other).tr)
        application = begun(mine)
        application.commit()
        with pytest.raises(StoreError, match="has ended"):
            mine.within(application.tr)


async def test_a_memory_transaction_that_was_committed_inside_its_block_is_an_error() -> None:
    async with JobsService("memory:", supervise=False) as jobs:
        application = begun(jobs)
        within = jobs.within(application.tr)
        within.__enter__().set_type_timeout(T1, TIMEOUT)
        application.commit()
        with pytest.raises(StoreError, match="has ended"):
            within.__exit__(None, None, None)
        assert await jobs.types() == []


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name not in (*APPLICATIONS, "simulated")], ids=lambda kind: str(kind.name)
)
async def test_stores_without_such_transactions_say_so(kind: StoreKind, tmp_path: Path) -> None:
    async with JobsService(kind.where(tmp_path), supervise=False) as jobs:
        with pytest.raises(StoreError, match=r"within\(\) needs an fdb: store") as caught:
            jobs.within(object())
        one_line(caught)
