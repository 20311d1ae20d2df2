"""The checker itself: it finds nothing wrong with what the service leaves, and complains about every kind of damage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import fdb.tuple
import pytest

from jobs_service import JobsService, JobState, Outcome, run_data
from jobs_service.layer.keyspace import Keyspace, pack_id, pack_seconds
from jobs_service.layer.record import Record
from jobs_service.model import HistoryKind, JobError
from jobs_service.store import Transaction
from tests.checker import assert_sound, check_store, packed
from tests.service.support import FAR_AWAY, LONG_AGO, accepted
from tests.stores import EVERY_STORE, StoreKind

T1 = "t1"
TYPES = (T1, b"t2", 3, ("t4", 1))
PRIORITIES = (0, -5, 10**12, "p", b"p", ("p", 1))


@pytest.fixture(params=EVERY_STORE)
async def jobs(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobsService]:
    """A service without a tree."""
    kind: StoreKind = request.param
    async with JobsService(kind.address_in(tmp_path), supervise=False) as service:
        yield service


@pytest.fixture
async def every_state() -> AsyncIterator[JobsService]:
    """One job in every state that there is, each named after it."""
    async with JobsService("memory:", supervise=False) as service:
        await fill(service, T1)
        yield service


async def fill(jobs: JobsService, type: object) -> None:
    """Bring one job into every state."""
    await jobs.set_type_timeout(type, 60)  # type: ignore[arg-type]
    for id in ("running", "canceled", "resubmitted", "succeeded", "failed", "ended canceled", "released"):
        await jobs.add(type, id, {"is": id})  # type: ignore[arg-type]
        worker = await accepted(jobs, type)
        if id in ("canceled", "ended canceled"):
            await jobs.remove(type, id)  # type: ignore[arg-type]
        if id in ("resubmitted", "released"):
            await worker.resubmit(priority=7, run_at=FAR_AWAY)
        if id in ("succeeded", "ended canceled"):
            await worker.finish({"was": id})
        if id == "failed":
            await worker.finish(outcome=Outcome.FAILED)
        if id == "released":
            await worker.release()
    await jobs.set_retention(type, keep=FAR_AWAY / 1e4, keep_failed=1)  # type: ignore[arg-type]
    for id in ("kept for a while", "to be forgotten"):
        await jobs.add(type, id)  # type: ignore[arg-type]
        worker = await accepted(jobs, type)
        await worker.progress(1, 2, "half")
        await worker.finish(
            outcome=Outcome.SUCCEEDED if id == "kept for a while" else Outcome.FAILED,
            result=[1],
            error=JobError("E", "no"),
        )
    await jobs.pause(type)  # type: ignore[arg-type]
    for number, priority in enumerate(PRIORITIES):
        await jobs.add(type, f"ready {number}", priority=priority, run_at=LONG_AGO)  # type: ignore[arg-type]
        await jobs.add(type, f"scheduled {number}".encode(), priority=priority, run_at=FAR_AWAY)  # type: ignore[arg-type]


async def test_it_has_no_complaint_about_jobs_in_every_state(jobs: JobsService) -> None:
    for type in TYPES:
        await fill(jobs, type)
    assert {job.state for job in [job async for job in jobs.list()]} == {
        JobState.PENDING,
        JobState.RUNNING,
        JobState.FINISHED,
    }
    assert await check_store(jobs.store) == []


# damage

ASKED = b'{"action": "stop", "who": "ada", "at": 1.0}'

Damage = Callable[[Transaction, Keyspace, dict[str, bytes]], None]
"""Does harm, given the raw records by their jobs' names."""


def noted(id: str, change: Callable[[bytes], bytes]) -> Damage:
    """Change the notes of a record."""

    def harm(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
        record = Record.decode(records[id])
        tr.set(key(keyspace, id), record.with_run_data(change(record.run_data)).encode())

    return harm


def key(keyspace: Keyspace, id: str, type: object = T1) -> bytes:
    """Return a job's DATA key."""
    return keyspace.of(type).data + pack_id(id)  # type: ignore[arg-type]


def remove_record(id: str) -> Damage:
    def harm(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
        tr.clear(key(keyspace, id))

    return harm


def patched(id: str, change: Callable[[bytearray], None]) -> Damage:
    """Change the bytes of a record."""

    def harm(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
        raw = bytearray(records[id])
        change(raw)
        tr.set(key(keyspace, id), bytes(raw))

    return harm


def flag(id: str, bits: int) -> Damage:
    def turn(raw: bytearray) -> None:
        raw[1] ^= bits

    return patched(id, turn)


def rewritten(id: str, **fields: object) -> Damage:
    """Change fields of a record."""

    def harm(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
        record = Record.decode(records[id])
        for name, value in fields.items():
            setattr(record, name, value)
        tr.set(key(keyspace, id), record.encode())

    return harm


def section_key(section: int, *fields: object) -> Callable[[Keyspace], bytes]:
    return lambda keyspace: keyspace.prefix + packed(section, *fields)


def written(make: Callable[[Keyspace], bytes], value: bytes) -> Damage:
    def harm(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
        tr.set(make(keyspace), value)

    return harm


def entry_cleared(id: str) -> Damage:
    """Clear a job's index entry."""

    def harm(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
        tr.clear(entry_key(keyspace, id, Record.decode(records[id])))

    return harm


def entry_changed(id: str, value: bytes) -> Damage:
    """Change what a job's index entry holds."""

    def harm(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
        tr.set(entry_key(keyspace, id, Record.decode(records[id])), value)

    return harm


def entry_key(keyspace: Keyspace, id: str, record: Record) -> bytes:
    keys = keyspace.of(T1)
    assert isinstance(record.seq, bytes)
    if record.lock is not None:
        return keys.activity + b"\x33" + record.seq
    if (expires := run_data.expires_at(record.run_data)) is not None:
        return keys.expiring + pack_seconds(expires) + pack_id(id)
    if record.run_at == FAR_AWAY:
        return keys.scheduled + pack_seconds(FAR_AWAY) + pack_id(id.encode())
    return keys.ready + record.priority + b"\x33" + record.seq + pack_id(id)


def second_entry(section: int, *fields: object, value: bytes = b"") -> Damage:
    return written(section_key(section, *fields), value)


def last_record(id: str, *, asleep: bool = False) -> Damage:
    """Have a job's record stand for one that has left with its end."""

    def harm(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
        tr.set(section_key(26, T1, "left")(keyspace), records[id])
        if asleep:
            tr.clear(keyspace.of(T1).awake)

    return harm


def same_seq(tr: Transaction, keyspace: Keyspace, records: dict[str, bytes]) -> None:
    tr.set(key(keyspace, "failed"), records["failed"][:2] + records["succeeded"][2:14] + records["failed"][14:])


STAMP = fdb.tuple.Versionstamp(b"\x00" * 7 + b"\x01" + b"\x00" * 2, 0)
FAR_STAMP = b"\x7f" * 10

DAMAGES: dict[str, tuple[Damage, str]] = {
    "a record is gone, ready": (remove_record("ready 0"), "belongs to no job"),
    "a record is cut": (patched("succeeded", lambda raw: raw.__delitem__(slice(30, None))), "damaged"),
    "a record is of another version": (patched("succeeded", lambda raw: raw.__setitem__(0, 9)), "version"),
    "data that is no JSON": (rewritten("succeeded", json=b"{"), "no JSON"),
    "a priority that is none": (rewritten("succeeded", priority=b"\x00"), "is none"),
    "running and ready at once": (flag("running", 2), "several states"),
    "a flag of notes that are not there": (flag("ready 0", 128), "no JSON"),
    "notes that are cut": (noted("ready 0", lambda told: told[:-1]), "record is damaged"),
    "notes with more behind": (noted("ready 0", lambda told: told + b"x"), "notes are damaged"),
    "an error that is none": (
        noted("to be forgotten", lambda told: run_data.with_part(told, run_data.ERROR, b"7")),
        "3 values",
    ),
    "a pending job that expires": (noted("ready 0", lambda told: run_data.expiring(told, LONG_AGO)), "that expires"),
    "a job that runs without an attempt": (noted("running", run_data.with_no_attempts), "without an attempt"),
    "a finished job that was only stopped": (
        noted("succeeded", lambda told: run_data.with_event(told, HistoryKind.STOPPED, LONG_AGO)),
        "its history says stopped",
    ),
    "a canceled job that finished": (
        noted("ended canceled", lambda told: run_data.with_event(told, HistoryKind.FINISHED, LONG_AGO)),
        "its history says finished",
    ),
    "canceled while pending": (flag("ready 0", 16), "cancel flag of a ready"),
    "ended while pending": (flag("ready 0", 32), "several states"),
    "finished without an outcome": (flag("succeeded", 32), "or in none"),
    "resubmitted while finished": (rewritten("succeeded", next=(fdb.tuple.pack((0,)), None)), "resubmit flag"),
    "a lock of zeros": (rewritten("running", lock=bytes(16)), "a lock of"),
    "another seq than the entry's, ready": (
        patched("ready 0", lambda raw: raw.__setitem__(13, raw[13] ^ 1)),
        "is missing",
    ),
    "another priority than the entry's": (rewritten("ready 0", priority=fdb.tuple.pack((1,))), "is missing"),
    "ready before its time": (rewritten("ready 0", run_at=FAR_AWAY), "due only in"),
    "no entry, ready": (entry_cleared("ready 1"), "is missing"),
    "an entry with another id": (entry_changed("running", pack_id("other")), "holds"),
    "an entry of no job, ready": (second_entry(2, T1, 0, STAMP, "nobody"), "belongs to no job"),
    "a second entry, ready": (second_entry(2, T1, 0, STAMP, "ready 0"), "belongs to no job"),
    "no entry, expiring": (entry_cleared("kept for a while"), "is missing"),
    "an entry of no job, expiring": (second_entry(11, T1, FAR_AWAY, "nobody"), "belongs to no job"),
    "an entry of a job that is kept for ever": (second_entry(11, T1, FAR_AWAY, "succeeded"), "belongs to no job"),
    "two jobs with one seq": (same_seq, "the same seq"),
    "a seq ahead of the type's activity": (
        patched("succeeded", lambda raw: raw.__setitem__(slice(2, 12), FAR_STAMP)),
        "ahead of its type's activity",
    ),
    "an activity ahead of the store": (written(section_key(5, T1), FAR_STAMP), "ahead of the store's"),
    "jobs without an activity": (lambda tr, keyspace, _: tr.clear(keyspace.of(T1).watch_activity), "no WATCH_ACTIVITY"),
    "jobs that nobody was woken for": (
        lambda tr, keyspace, _: tr.clear(keyspace.of(T1).watch_pending),
        "no WATCH_PENDING",
    ),
    "a counter that is none": (written(section_key(4, T1), b"\x01"), "no counter"),
    "a counter of canceled jobs at zero": (written(section_key(8, T1), bytes(8)), "no counter"),
    "a pause that holds something": (written(section_key(9, T1), b"x"), "not nothing"),
    "a retention of one time": (written(section_key(10, T1), fdb.tuple.pack((1.0,))), "no two numbers"),
    "a negative retention": (written(section_key(10, T1), fdb.tuple.pack((1.0, -1.0))), "no two numbers"),
    "a last tick that is no number": (written(section_key(12, T1), fdb.tuple.pack((float("nan"),))), "no time"),
    "a negative timeout": (written(section_key(6, T1), fdb.tuple.pack((-1.0,))), "no positive"),
    "a timeout that is no tuple": (written(section_key(6, T1), b"\x21"), "no seconds"),
    "a last record of a pending job": (last_record("ready 0"), "no record of a job that has left"),
    "a last record of a job that is kept for ever": (last_record("succeeded"), "no record of a job that has left"),
    "a last record that nobody reads": (last_record("kept for a while"), "nobody follows its type"),
    "a last record that nobody removes": (last_record("kept for a while", asleep=True), "its type is not awake"),
    "a doubt that is none": (written(section_key(19, T1), bytes(10) + b"\x03"), "no versionstamp"),
    "what a process is asked that is not there": (
        written(lambda keyspace: keyspace.prefix + fdb.tuple.pack((51, "0" * 12)), ASKED),
        "nobody of that id",
    ),
    "what a process is asked that is none": (
        written(lambda keyspace: keyspace.prefix + fdb.tuple.pack((51, "x")), ASKED),
        "PROCESS_REQUESTS",
    ),
    "an unknown section": (written(section_key(99, T1), b""), "unknown section"),
    "a section that is no number": (
        written(lambda keyspace: keyspace.prefix + fdb.tuple.pack((b"x", T1)), b""),
        "unknown section",
    ),
    "a key that is no tuple": (written(lambda keyspace: keyspace.prefix + b"\x99", b""), "no tuple"),
    "a key with too few elements": (written(section_key(2, T1, 0), b""), "elements"),
    "a type that is none": (written(section_key(6, 1.5), fdb.tuple.pack((1.0,))), "float"),
    "an id that is none": (written(section_key(1, T1, 5), b""), "id 5"),
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_it_complains_about(every_state: JobsService, what: str) -> None:
    harm, complaint = DAMAGES[what]
    store = every_state.store
    keyspace = Keyspace(await store.prefix())

    async def damage(tr: Transaction) -> None:
        head = keyspace.of(T1).data
        found = await tr.get_range(head, head + b"\xff")
        records = {str(id if isinstance(id, str) else id.decode()): raw for id, raw in _by_id(head, found)}
        harm(tr, keyspace, records)

    assert await check_store(store) == []
    await store.transact(damage)
    found = await check_store(store)
    assert any(complaint in line for line in found), found
    assert all("\n" not in line for line in found)
    with pytest.raises(AssertionError, match="the store is damaged"):
        await assert_sound(store)


def _by_id(head: bytes, pairs: list[tuple[bytes, bytes]]) -> list[tuple[str | bytes, bytes]]:
    return [(fdb.tuple.unpack(key[len(head) :])[0], raw) for key, raw in pairs]


async def test_a_job_that_is_damaged_on_purpose_is_in_no_index_once_it_is_set_aside(every_state: JobsService) -> None:
    store = every_state.store
    keyspace = Keyspace(await store.prefix())
    await every_state.add(T1, "damaged")

    async def write(key: bytes) -> None:
        async def work(tr: Transaction) -> None:
            tr.set(key, b"")

        await store.transact(work)

    await write(section_key(1, T1, "damaged")(keyspace))
    named = [(T1, "damaged")]
    assert [line for line in await check_store(store) if "damaged" in line]
    await assert_sound(store, damaged=named)
    await write(section_key(15, T1, "damaged")(keyspace))
    [complaint] = await check_store(store, damaged=named)
    assert "belongs to a job that is set aside" in complaint
