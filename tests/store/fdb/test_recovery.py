"""A cluster that recovers, as it does when one of its processes fails: what had begun is too old then, young or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.fdb import FdbStore
from tests.contract.support import value_of
from tests.stores import plain_settings
from tests.system.fdb_server import FdbServer, missing

KEY = b"own/key"


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.timeout(120)
async def test_a_function_in_the_midst_of_which_the_cluster_recovers_is_run_again(tmp_path: Path) -> None:
    with FdbServer(tmp_path) as server:
        store = FdbStore(str(server.cluster_file), settings=plain_settings(), sources=Sources())
        await store.open()
        await store.prefix()
        for reads_after in (False, True):
            runs = 0

            async def function(transaction: Transaction, reads_after: bool = reads_after) -> None:
                nonlocal runs
                runs += 1
                await transaction.get(KEY)
                if runs == 1:
                    server.recover()
                if reads_after:
                    await transaction.get(KEY + b"/other")
                transaction.set(KEY, b"%d" % runs)

            await store.transact(function)
            assert await value_of(store, KEY) == b"2"
        await store.close()
