"""Reads on a cluster: what was expected, what takes several replies, what was too old."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service.errors import StoreError
from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.fdb import FdbStore
from tests.contract.support import write
from tests.store.fdb.clusters import CLUSTER, cluster_test
from tests.store.fdb.test_store import KEY, OTHER, make, write_nothing
from tests.stores import plain_settings


@cluster_test
async def test_what_was_written_meanwhile_is_read_and_not_what_was_expected() -> None:
    store = make()
    await store.open()
    await write_nothing(store)
    await write(store, {OTHER: b"old"})

    async def writing(tr: Transaction) -> list[bytes | None]:
        tr.snapshot.expect([OTHER])
        await tr.get(KEY)
        tr.set(OTHER, b"new")
        return [await tr.snapshot.get(OTHER), await tr.get(OTHER)]

    assert await store.transact(writing) == [b"new", b"new"]
    await store.close()


@cluster_test
async def test_a_range_that_takes_several_replies_has_each_key_once() -> None:
    store = make()
    await store.open()
    await write_nothing(store)
    keys = [KEY + b"/%02d" % number for number in range(60)]
    for begin in range(0, len(keys), 20):
        await write(store, {key: bytes(50_000) for key in keys[begin : begin + 20]})
    for reverse in (False, True):

        async def whole(tr: Transaction, reverse: bool = reverse) -> list[bytes]:
            return [key for key, _ in await tr.get_range(KEY + b"/", KEY + b"0", reverse=reverse)]

        assert await store.read(whole) == sorted(keys, reverse=reverse)
    await write_nothing(store)
    await store.close()


class Aged(FdbStore):
    """A store whose next transaction sees a state that the cluster does not have any more."""

    aged = False

    def _choose_options(self, native: Any) -> None:
        super()._choose_options(native)
        if self.aged:
            self.aged = False
            native.set_read_version(1)


@cluster_test
@pytest.mark.parametrize("catches", [False, True])
async def test_a_read_that_was_too_old_is_done_again_whatever_the_function_makes_of_it(catches: bool) -> None:
    store = Aged(CLUSTER, settings=plain_settings(), sources=Sources())
    await store.open()
    await write(store, {KEY: b"1"})
    met: list[str] = []

    async def function(transaction: Transaction) -> bytes | None:
        try:
            return await transaction.get(KEY)
        except StoreError as error:
            met.append(str(error))
            if catches:
                return None
            raise

    for call in (store.read, store.transact):
        store.aged = True
        assert await call(function) == b"1"
    assert ["1007" in each for each in met] == [True, True]
    await store.close()
