"""The relay: each row becomes one job, in order; rows that cannot be jobs are set aside."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jobs_service import JobsService, JobState, Settings, outbox
from jobs_service.cli.verbs.health import _problems, _read_state
from jobs_service.copying import copy_jobs
from jobs_service.errors import InvalidSettings, ServiceClosed, TransactionTooOld
from jobs_service.layer import rows as store_rows
from jobs_service.layer.transaction import JobTransaction
from jobs_service.model.process import OutboxInfo
from jobs_service.outbox import databases, relays
from jobs_service.outbox.databases import OncePlace, Session, database_at
from jobs_service.outbox.relays import Relay
from jobs_service.outbox.tables import in_dialect
from jobs_service.sources import Sources
from jobs_service.store import open_address
from tests.checker import assert_sound
from tests.copying.support import opened
from tests.outbox.server import Server
from tests.outbox.support import Place, relaying
from tests.service.support import eventually


async def _queue(jobs: JobsService, type: str = "receipt") -> list[Any]:
    """Return the data of all jobs in the order in which they run."""
    found = []
    while (job := await jobs.accept(type, timeout=0)) is not None:
        found.append(job.data)
    return found


async def test_rows_of_any_program_become_jobs_in_their_order(place: Place, jobs: JobsService) -> None:
    for number in range(10):
        place.insert(type="receipt", data=json.dumps(number))
    place.enqueue_many(range(10, 1100))
    async with relaying(jobs, place.url):
        await place.until_empty()
    assert await _queue(jobs) == [*range(1100)]
    assert place.rows() == []


async def test_long_rows_are_read_a_few_at_a_time(
    place: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(60):
        place.insert(type="receipt", data="7" + " " * 600_000)
    read: list[int] = []
    really = Session.rows

    async def rows(session: Session, limit: int) -> list[Any]:
        found = await really(session, limit)
        read.append(len(found))
        return found

    monkeypatch.setattr(Session, "rows", rows)
    async with relaying(jobs, place.url):
        await place.until_empty()
    assert (read[0], sum(read)) == (32, 60)
    assert max(read[1:]) <= 8  # twice four, which take 2.4 of the 3 million characters
    assert await _queue(jobs) == [7] * 60


async def test_rows_that_were_set_aside_are_not_read_to_find_those_that_wait(sqlite: Place) -> None:
    async with database_at(sqlite.url).session() as session:
        asked = "explain query plan select seq from jobs_service_outbox where reason is null order by seq limit 5"
        [(*_, plan)] = await session.run(asked)
    assert plan.endswith("INDEX jobs_service_outbox_waiting")


async def test_a_row_for_which_the_store_was_too_slow_is_moved_later(
    place: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, slow = Relay._add, [True]

    async def add(relay: Relay, *given: Any) -> Any:
        if slow.pop() if slow else False:
            raise TransactionTooOld("it took longer than 5 s")
        return await really(relay, *given)

    monkeypatch.setattr(Relay, "_add", add)
    place.enqueue("receipt", 1)
    async with relaying(jobs, place.url):
        await place.until_empty()
    assert await _queue(jobs) == [1]


async def test_new_rows_are_moved_without_waiting_for_the_next_look(
    place: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "POLL", 3600.0)
    async with relaying(jobs, place.url):
        for number in range(3):
            place.enqueue("receipt", number)
            await place.until_empty()
    assert await _queue(jobs) == [0, 1, 2]


async def test_a_row_that_no_notification_tells_of_is_found(
    postgres: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "POLL", 0.05)
    async with relaying(jobs, postgres.url):
        await postgres.until_empty()
        postgres.insert(type="receipt", data="7")
        await postgres.until_empty()
    assert await _queue(jobs) == [7]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"type": "receipt", "data": "{"}, "data: not JSON (Expecting property name"),
    ({"type": "receipt", "data": "[" * 100_000}, "data: not usable JSON (nested too deeply)"),
    ({"type": "receipt", "data": "NaN"}, "data: not usable JSON (NaN is not a JSON number)"),
    ({"type": "receipt", "data": json.dumps("x" * 200_000)}, "limit"),
    ({"type": "receipt", "data": json.dumps("x" * 2_000_000)}, "its data have 2000002 characters"),
    ({"type": "nobody", "data": "1"}, "there is no type 'nobody': the start of its handler"),
    ({"type": "json:{", "data": "1"}, "type: "),
    ({"type": "receipt", "id": "i" * 20_000}, "limit"),
    ({"type": "receipt", "id": "there", "data": "1"}, "job 'receipt'/'there' exists already"),
    ({"type": "receipt", "id": "x", "if_exists": "unique"}, "with if_exists 'unique' it begins with 'unique:'"),
    ({"type": "receipt", "max_attempts": -1}, "max_attempts=-1"),
    ({"type": "receipt", "time_limit": -1.0}, "time_limit=-1.0"),
]


async def test_rows_that_cannot_be_jobs_are_set_aside_and_block_no_others(place: Place, jobs: JobsService) -> None:
    await jobs.add("receipt", "there", 0)
    good: list[str] = []
    for columns, _ in REFUSED:
        place.insert(**columns)
        good.append(place.enqueue("receipt", len(good)))
    async with relaying(jobs, place.url):
        await place.until_empty()
        assert [(await jobs.get("receipt", id)).data for id in good] == [*range(len(good))]
        reasons = [reason for _, _, _, reason in place.rows()]
        assert len(reasons) == len(REFUSED)
        for reason, (_, expected) in zip(reasons, REFUSED, strict=True):
            assert expected in reason
            assert reason.isprintable()
        # What was mended is tried again when its reason is taken away.
        place.run("update jobs_service_outbox set data = '7', reason = null where data = '{'")
        await place.until_empty()
    assert len(place.rows()) == len(REFUSED) - 1


async def test_any_bytes_in_a_sqlite_row_set_only_that_row_aside(sqlite: Place, jobs: JobsService) -> None:
    for columns in ({"type": b"\xff"}, {"type": "receipt", "data": b"\xff\x00"}, {"type": "receipt", "run_at": "soon"}):
        sqlite.insert(**columns)
    sqlite.run("insert into jobs_service_outbox (type, data) values ('receipt', cast(x'22ff22' as text))")
    sqlite.run("insert into jobs_service_outbox (type, data, priority) values ('receipt', '1', 'high')")
    id = sqlite.enqueue("receipt", 7)
    async with relaying(jobs, sqlite.url):
        await sqlite.until_empty()
    assert (await jobs.get("receipt", id)).data == 7
    count = "select count(*) from jobs_service_outbox where reason is not null"
    assert sqlite.run(count) == [(5,)]


async def test_any_bytes_in_a_database_without_an_encoding_set_only_that_row_aside(
    server: Server, jobs: JobsService
) -> None:
    place = Place(server.make_database("SQL_ASCII"))
    place.run(outbox.schema("postgresql"))
    place.run("insert into jobs_service_outbox (type, data) values ('receipt', E'\"\\xff\"')")
    id = place.enqueue("receipt", "é")
    async with relaying(jobs, place.url):
        await place.until_empty()
    assert (await jobs.get("receipt", id)).data == "é"
    assert place.run("select count(*) from jobs_service_outbox where reason is not null") == [(1,)]


@pytest.mark.parametrize(("given", "used"), [("off", "on"), ("remote_apply", "remote_apply")])
async def test_rows_are_removed_durably_whatever_the_database_does_by_default(
    given: str, used: str, postgres: Place
) -> None:
    name = postgres.url.partition("///")[2].partition("?")[0]
    postgres.run(f"alter database {name} set synchronous_commit = {given}")
    async with database_at(postgres.url).session() as session:
        assert await session.run("select current_setting('synchronous_commit')") == [(used,)]


async def test_a_file_that_takes_the_place_of_another_is_relayed(sqlite: Place, jobs: JobsService) -> None:
    other = Place(f"{sqlite.url}-other")
    other.connect().executescript(outbox.schema("sqlite"))
    async with relaying(jobs, sqlite.url):
        sqlite.enqueue("receipt", 1)
        await sqlite.until_empty()
        os.rename(other.path, sqlite.path)
        sqlite.enqueue("receipt", 2)
        await sqlite.until_empty()
    assert await _queue(jobs) == [1, 2]


async def test_rows_of_an_unknown_type_are_moved_once_the_type_exists(
    place: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_RETRY_TYPES_EVERY", 0.0)
    monkeypatch.setattr(databases, "POLL", 0.05)
    place.insert(type="later", data="1")
    async with relaying(jobs, place.url):
        await place.until_empty()
        await jobs.set_type_timeout("later", 60)

        async def is_moved() -> bool:
            return place.rows() == []

        await eventually(is_moved)
    assert await _queue(jobs, "later") == [1]


async def test_a_named_job_follows_the_rule_of_its_row(place: Place, jobs: JobsService) -> None:
    for rule in ("ignore", "resubmit"):
        await jobs.add("receipt", rule, "old")
        place.enqueue("receipt", "new", id=rule, if_exists=rule)
    for _ in range(2):
        place.enqueue("receipt", {"order": 7}, unique=True)
        place.enqueue("receipt", {"order": 8}, unique="eight", unique_for=60)
    async with relaying(jobs, place.url):
        await place.until_empty()
    assert place.rows() == []
    assert (await jobs.get("receipt", "ignore")).data == "old"
    assert (await jobs.get("receipt", "resubmit")).data == "new"
    assert [job.data async for job in jobs.list("receipt") if str(job.id).startswith("unique:")].__len__() == 2


async def test_large_rows_are_moved_by_as_many_transactions_as_they_need(place: Place, jobs: JobsService) -> None:
    place.enqueue_many([number, "x" * 90_000] for number in range(120))
    async with relaying(jobs, place.url):
        await place.until_empty()
    assert [number for number, _ in await _queue(jobs)] == [*range(120)]


async def test_of_several_relays_one_works_and_another_takes_over(
    place: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "POLL", 0.02)
    monkeypatch.setattr(databases, "POLL", 0.02)
    first = asyncio.create_task(outbox.relay(jobs, place.url))
    place.enqueue("receipt", 1)
    await place.until_empty()
    async with relaying(jobs, place.url, place.url):
        for number in range(2, 50):
            await asyncio.to_thread(place.enqueue, "receipt", number)
            if number == 25:
                first.cancel()
        await place.until_empty()
    await asyncio.wait([first])
    assert await _queue(jobs) == [*range(1, 50)]


class _Dies(Exception):
    """Ends a relay between its two commits."""


async def _relay_that_dies(jobs: JobsService, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a relay that has added a batch to the store, and dies before it removes the rows."""

    async def remove(*_: Any) -> None:
        raise _Dies

    with monkeypatch.context() as patch:
        patch.setattr(Session, "remove", remove)
        relay = Relay(jobs, place.url)
        async with relay._database.session() as session:
            with pytest.raises(_Dies):
                await relay._work(session)


async def test_a_row_whose_relay_died_in_between_is_no_second_job_even_if_the_first_has_gone(
    place: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [place.enqueue("receipt", number) for number in range(3)]
    place.insert(type="receipt", data="3")
    await _relay_that_dies(jobs, place, monkeypatch)
    assert len(place.rows()) == 4
    assert await _queue(jobs) == [0, 1, 2, 3]
    async for job in jobs.list("receipt"):
        await jobs.remove("receipt", job.id, force=True)
    await _relay_that_dies_before_it_claims(jobs, place, monkeypatch)
    new = place.enqueue("receipt", 4)
    async with relaying(jobs, place.url):
        await place.until_empty()
    assert [job.id async for job in jobs.list("receipt")] == [new]
    assert new not in ids


async def _relay_that_dies_before_it_claims(jobs: JobsService, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def remove_moved(*_: Any) -> None:
        raise _Dies

    with monkeypatch.context() as patch:
        patch.setattr(Session, "remove_moved", remove_moved)
        relay = Relay(jobs, place.url)
        async with relay._database.session() as session:
            with pytest.raises(_Dies):
                await relay._work(session)


async def test_a_copy_of_the_store_knows_which_rows_were_moved(
    sqlite: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with JobsService(f"lmdb:{tmp_path / 'store'}") as jobs:
        await jobs.set_type_timeout("receipt", 60)
        sqlite.enqueue("receipt", 7)
        await _relay_that_dies(jobs, sqlite, monkeypatch)
        async for job in jobs.list("receipt"):
            await jobs.remove("receipt", job.id)
    stores = [open_address(f"lmdb:{tmp_path / name}", Settings(), Sources()) for name in ("store", "copy")]
    async with opened(*stores):
        await copy_jobs(*stores, sources=Sources())
        await assert_sound(stores[1])
    async with JobsService(f"lmdb:{tmp_path / 'copy'}") as jobs:
        async with relaying(jobs, sqlite.url):
            await sqlite.until_empty()
        assert [job async for job in jobs.list("receipt")] == []


async def test_a_process_tells_others_of_its_outboxes(sqlite: Place, tmp_path: Path) -> None:
    missing = f"{sqlite.url}-that-is-missing"
    async with (
        JobsService(f"lmdb:{tmp_path / 'store'}") as jobs,
        jobs.listed(lambda: None),
        relaying(jobs, missing),
    ):

        async def is_told() -> bool:
            return [each.name for process in await jobs.processes() for each in process.outboxes] == [missing]

        await eventually(is_told)
        state, _ = await _read_state(jobs)
        [problem] = [each for each in _problems(state, None) if "outbox" in each]
        assert problem.startswith(f"nothing is moved from outbox {missing}: there is no file")


async def test_a_relay_that_has_lost_its_place_without_noticing_adds_nothing(place: Place, jobs: JobsService) -> None:
    place.enqueue("receipt", 7)
    stalled = Relay(jobs, place.url)
    async with stalled._database.session() as session:
        identity = await session.outbox()
        await stalled._claimed(identity, "first owner")
        rows = await session.rows(10)
        async with relaying(jobs, place.url):
            await place.until_empty()
        assert await _queue(jobs) == [7]
        async for job in jobs.list("receipt"):
            await jobs.remove("receipt", job.id, force=True)
        with pytest.raises(databases.DatabaseAway, match="another relay works"):
            await stalled._move(session, identity, "first owner", rows)
    assert [job async for job in jobs.list("receipt")] == []


async def test_the_lag_is_told_and_ends_with_the_relay(
    place: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_COUNT_EVERY", 0.0)
    place.insert(type="nobody")
    name = database_at(place.url).name
    async with relaying(jobs, place.url):

        async def is_told() -> bool:
            return jobs._presence.outboxes.get(name) == OutboxInfo(name, 0, None, 1)

        await eventually(is_told)
    assert jobs._presence.outboxes == {}
    async with database_at(place.url).session() as session:
        place.insert(type="nobody")
        lag = await session.lag()
        assert (lag.rows, lag.set_aside) == (1, 1)
        assert lag.oldest is not None
        assert lag.oldest >= 0
        assert [(row.type, row.id) for row in await session.rows_set_aside(10)] == [("nobody", None)]
        assert await session.retry([]) == 0
        assert await session.retry() == 1


async def test_a_database_that_is_not_there_is_waited_for(
    tmp_path: Any, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_LONGEST_PAUSE", 0.05)
    place = Place(f"sqlite:{tmp_path / 'app.db'}")
    name = database_at(place.url).name

    async def says(words: str) -> bool:
        found = jobs._presence.outboxes.get(name)
        return found is not None and words in found.error

    async with relaying(jobs, place.url):
        await eventually(lambda: says("there is no file"))
        place.run("create table users (mail text)")
        await eventually(lambda: says("jobs-service outbox init URL makes them"))
        async with database_at(place.url).session() as session:
            await session.make_tables()
            await session.make_tables()
        place.enqueue("receipt", 7)
        await place.until_empty()
    assert await _queue(jobs) == [7]


async def test_tables_of_another_version_are_left_alone(place: Place, jobs: JobsService) -> None:
    place.run("update jobs_service_tables set version = 2")
    place.insert(type="receipt")
    async with database_at(place.url).session() as session:
        with pytest.raises(databases.DatabaseAway, match="tables are of version 2; this program has version 1"):
            await session.outbox()


async def test_a_relay_of_a_closed_service_ends(place: Place) -> None:
    with pytest.raises(ServiceClosed):
        await outbox.relay(JobsService("memory:"), place.url)


@pytest.mark.parametrize("url", ["", "mysql://host/app", "sqlite:", "postgresql", "postgresql://?nonsense=1"])
async def test_an_address_of_no_database_is_refused(url: str, jobs: JobsService) -> None:
    with pytest.raises(InvalidSettings, match="outbox"):
        await outbox.relay(jobs, url)


async def test_what_a_store_notes_of_an_outbox_does_not_grow(place: Place, jobs: JobsService) -> None:
    place.enqueue_many(range(1100))
    async with relaying(jobs, place.url):
        await place.until_empty()
    async with database_at(place.url).session() as session:
        identity = await session.outbox()

    async def noted(tx: JobTransaction) -> list[str]:
        return (await store_rows.relayed(tx._unit, identity))[1]

    assert len(await jobs.transact(noted)) <= relays.BATCH.jobs


async def test_rows_do_not_wait_until_all_old_notes_are_gone(
    place: Place, jobs: JobsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, forget, done = [], relays.forget_effects, asyncio.Event()

    async def forget_some(jobs: JobsService, session: Session, after: OncePlace) -> OncePlace | None:
        left.append(len(place.rows()))
        place.enqueue("receipt", 7)
        end = await forget(jobs, session, after, keep=0)
        if end is None:
            done.set()
        return end

    monkeypatch.setattr(relays, "_FORGET_PAGE", 2)
    monkeypatch.setattr(relays, "forget_effects", forget_some)
    for number in range(5):
        at = in_dialect("<from_seconds 5>", "sqlite" if place.is_sqlite else "postgresql")
        place.run(f"insert into jobs_service_once values ('receipt', '{number}', '', '', '', {at})")
    async with relaying(jobs, place.url):
        await done.wait()
        assert place.run("select * from jobs_service_once") == []
    assert left == [0, 0, 0]


async def test_the_notes_of_effects_go_when_their_jobs_have_ended(place: Place, jobs: JobsService) -> None:
    for id in ("runs", "ended", "gone"):
        await jobs.add("receipt", id)
        job = await jobs.accept("receipt")
        assert job is not None
        with closing(place.connect()) as connection:
            connection.execute("begin")
            assert outbox.once(connection, job)
            connection.execute("commit")
        if id != "runs":
            await job.finish()
    await jobs.remove("receipt", "gone")
    place.run("insert into jobs_service_once select type, 'json:[', key, runs, done, at from jobs_service_once limit 1")
    async with database_at(place.url).session() as session:
        assert await relays.forget_effects(jobs, session, relays.FIRST_NOTE, keep=3600) is None
        assert len(place.run("select id from jobs_service_once")) == 4
        assert await relays.forget_effects(jobs, session, relays.FIRST_NOTE, keep=0) is None
    assert place.run("select id from jobs_service_once order by id") == [("json:[",), ("runs",)]
    assert (await jobs.get("receipt", "runs")).state is JobState.RUNNING
