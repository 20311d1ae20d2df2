"""The independent reader: it reads tuples as FoundationDB's own code does, explains every row, and refuses all else."""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fdb.tuple
import pytest
from hypothesis import given

from jobs_service import JobsService, context
from jobs_service.layer import awake_types, changes, keyspace, rows, type_settings
from jobs_service.layer.keyspace import Keyspace
from jobs_service.layer.rows import MARK_BYTES, RepeatableRequest, SessionRow, TokenRow, mark_key
from jobs_service.layer.unit_of_work import UnitOfWork, run
from jobs_service.model import ProcessAction, ProcessRequest
from jobs_service.model.type_state import Retention
from jobs_service.sources import Sources
from jobs_service.store import Store, Transaction, open_address
from tests import reader
from tests.copying.support import everything, populate
from tests.layer.processes import process_row
from tests.layer.tuples import TUPLES
from tests.reader import Record
from tests.reader.rows import FAMILIES
from tests.service.support import FAR_AWAY
from tests.stores import plain_settings

LAYOUT = (Path(__file__).parent.parent / "docs" / "layout.md").read_text()
DOCUMENTED = re.findall(r"^\| ([A-Z_]+) \| \((\d+)([^)]*)\) \|", LAYOUT, re.MULTILINE)


def comparable(value: Any) -> Any:
    """Return what can be compared with what another reader has made of the same bytes: NaN too."""
    if isinstance(value, tuple):
        return tuple(map(comparable, value))
    return (type(value), struct.pack(">d", value)) if isinstance(value, float) else (type(value), value)


# tuples


@given(TUPLES)
def test_tuples_are_read_as_by_the_tuple_layer(values: tuple[Any, ...]) -> None:
    packed = fdb.tuple.pack(values)
    found = reader.elements(packed)
    assert comparable(tuple(value for value, _ in found)) == comparable(fdb.tuple.unpack(packed))
    assert b"".join(raw for _, raw in found) == packed


# rows


@pytest.fixture(params=["memory:", "lmdb:"])
async def full(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    """A store with a row of every shape."""
    address = request.param if request.param == "memory:" else f"lmdb:{tmp_path}"
    store = open_address(address, plain_settings(), Sources(1))
    await store.open()
    try:
        await _fill(store)
        yield store
    finally:
        await store.close()


async def _fill(store: Store) -> None:
    await populate(store)
    keys = Keyspace(await store.prefix())

    async def work(unit: UnitOfWork) -> None:
        transaction = unit.transaction
        await changes.follow(transaction, keys.of("followed"))
        type_settings.make_type(unit, keys.of("made by enqueue"), 30.0)
        await type_settings.declare(unit, keys.of("handled"), type_settings.Declared(30.0, Retention(None, 5.0)))
        transaction.set(keys.of("email").set_aside + b"\x02unreadable\x00", b"")
        rows.write(unit, process_row("0123456789ab"))
        rows.note_relayed(unit, "shop", "7d1f", ["4a", "4b"])
        await rows.ask(unit, "0123456789ab", ProcessRequest(ProcessAction.QUIET, "ada", FAR_AWAY))

    async def settle(transaction: Transaction) -> None:
        assert await awake_types.settle(transaction, keys, keys.of(b"b"), FAR_AWAY - 1)

    await store.transact(lambda transaction: run(transaction, keys, Sources(3), work))
    async with JobsService(store, supervise=False) as jobs:
        await jobs.remote.add_token(TokenRow("somebody", "read", "0" * 64, FAR_AWAY))
        await jobs.remote.add_session(SessionRow("1" * 64, FAR_AWAY, "somebody", "0" * 64))
        handler = jobs.handler("limited", redact=["card"])(_nothing)
        await jobs.enqueue(handler, id="limited", max_attempts=3, time_limit=1.5, delay=1e6)
        with context(tenant="acme"):
            await jobs.enqueue(handler, id="in a context", run_at=FAR_AWAY)
        await jobs.set_type_timeout("leaving", 5)
        await jobs.set_retention("leaving", keep=0)
        await jobs.add("leaving", "left")
        leaving = await jobs.accept("leaving")
        assert leaving is not None
        await leaving.finish()
        await jobs.set_type_timeout("followed", 5)
        await jobs.remote.add_once(RepeatableRequest("key", b"what"), "followed", "a", None)
        await jobs.add("followed", b"b\x00", {"b": None})
        job = await jobs.accept("followed")
        assert job is not None
        await job.finish()
        running = await jobs.accept("followed")
        assert running is not None
        await running.resubmit(priority=(1, "x"), run_at=FAR_AWAY)
        await jobs.remove("followed", running.id)
    await store.transact(settle)

    async def forget(transaction: Transaction) -> None:
        stamp = await transaction.get(keys.of("followed").watch_activity)
        assert stamp is not None
        transaction.set(keys.of("followed").changes, bytes(10))

    await store.transact(forget)


async def _nothing() -> None:
    """Do nothing."""


async def test_every_key_and_value_of_a_store_is_explained(full: Store) -> None:
    mark = mark_key(Keyspace(await full.prefix()))

    async def mark_as_half_copied(transaction: Transaction) -> None:
        transaction.set(mark, bytes(MARK_BYTES))

    await full.transact(mark_as_half_copied)
    rows = [reader.row(key, value) for key, value in (await everything(full)).items()]
    shapes = {(row.family, len(row.names)) for row in rows}
    assert shapes == {(family[0], len(family[1])) for families in FAMILIES.values() for family in families}
    records = [row.value for row in rows if row.family == "DATA"]
    assert {record.state for record in records} == {"ready", "scheduled", "running", "finished"}
    assert {record.outcome for record in records} == {None, "succeeded", "failed", "canceled"}
    for part in ("result", "error", "progress", "limits", "expires", "attempts", "history", "crashes"):
        assert any(getattr(record.notes, part) for record in records), part


async def test_a_record_says_what_the_service_says_of_the_job(full: Store) -> None:
    rows = [reader.row(key, value) for key, value in (await everything(full)).items()]
    records: dict[Any, Record] = {row.names: row.value for row in rows if row.family == "DATA"}
    async with JobsService(full, supervise=False) as jobs:
        async for job in jobs.list():
            record = records.pop((job.type, job.id))
            state = "pending" if record.state in ("ready", "scheduled") else record.state
            told = record.notes
            assert (job.state, job.outcome, job.seq) == (state, record.outcome, record.seq)
            assert fdb.tuple.pack((job.priority,)) == record.priority
            assert job.run_at == (None if record.run_at is None else datetime.fromtimestamp(record.run_at, UTC))
            assert (job.resubmit, job.cancel) == (record.next is not None, record.cancel)
            assert (job.data, job.attempts) == (reader.value_of(record.data), told.attempts)
            assert [(event.kind, event.at, event.detail) for event in job.history] == [*told.history]
            assert job.result == reader.value_of(told.result or b"")
            assert (job.max_attempts, job.time_limit) == tuple(reader.value_of(told.limits or b"[null,null]")[:2])
            error, progress = reader.value_of(told.error or b""), reader.value_of(told.progress or b"")
            assert (job.error and [job.error.type, job.error.message, job.error.traceback]) == error
            said = job.progress
            assert (said and [said.done, said.total, said.message, said.attempt]) == progress
    assert not records


# the page


def test_the_page_and_the_reader_have_the_same_families() -> None:
    documented = {(int(number), name, rest.count(",")) for name, number, rest in DOCUMENTED}
    assert documented == {
        (number, family[0], len(family[1])) for number, families in FAMILIES.items() for family in families
    }


def test_the_page_names_every_section_of_the_keyspace() -> None:
    defined = {**vars(rows), **vars(rows), **vars(keyspace)}
    sections = {name: value for name, value in defined.items() if name.isupper() and type(value) is int}
    numbers = {name: int(number) for name, number, _ in DOCUMENTED}
    assert {name: sections.get(name) for name in numbers} == numbers
    assert len(set(numbers.values())) == len(numbers)


def test_the_reader_knows_nothing_of_the_package() -> None:
    modules = sorted(Path(reader.__file__).parent.glob("*.py"))
    assert len(modules) > 1
    assert [module.name for module in modules if "jobs_service" in module.read_text()] == []
