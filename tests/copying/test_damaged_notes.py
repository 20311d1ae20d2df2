"""Notes and claims of an unfinished copy: what is said of those that cannot be read."""

from __future__ import annotations

import pytest

from jobs_service.copying import CopyRefused, copy_jobs
from jobs_service.copying.note import Note, Phase
from jobs_service.errors import StoreError
from jobs_service.layer.keyspace import COPYING, Keyspace
from jobs_service.sources import Sources
from jobs_service.store import Transaction
from jobs_service.store.base import STAMP_BYTES
from tests.copying.support import half_copied, memory, opened, two_stores


@pytest.mark.parametrize(
    ("note", "error", "complaint"),
    [
        (b"", StoreError, "the note of an unfinished copy is damaged"),
        (b"[]", StoreError, "the note of an unfinished copy is damaged"),
        (b'{"version": 1}', StoreError, "the note of an unfinished copy is damaged"),
        (b'{"version": 1, "source": "a", "fingerprint": "", "phase": "later"}', StoreError, "is damaged"),
        (b'{"version": 1, "source": "a", "fingerprint": "", "phase": "rest", "after": "x"}', StoreError, "is damaged"),
        (b'{"version": 1, "source": "a", "fingerprint": "", "phase": "rest", "after": 1}', StoreError, "is damaged"),
        (b'{"version": 2, "more": 1}', CopyRefused, r"another version of jobs_service \(2\): finish it with that one"),
    ],
)
async def test_a_note_that_cannot_be_read_is_told(note: bytes, error: type[Exception], complaint: str) -> None:
    source, target = memory(), memory()
    async with opened(source, target):
        key = Keyspace(await target.prefix()).sections[COPYING]

        async def write(tr: Transaction) -> None:
            tr.set(key, note)

        await target.transact(write)
        with pytest.raises(error, match=complaint):
            await copy_jobs(source, target, sources=Sources(1))


@pytest.mark.parametrize("start_over", [False, True])
@pytest.mark.parametrize("damage", [b"", b"x", bytes(STAMP_BYTES), bytes(STAMP_BYTES + 2)])
async def test_a_claim_that_cannot_be_read_is_told(damage: bytes, start_over: bool) -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        keyspace = Keyspace(await target.prefix())

        async def write(tr: Transaction) -> None:
            section = keyspace.sections[COPYING]
            for key, _ in await tr.get_range(section + b"\x00", section + b"\xff"):
                tr.set(key, damage)

        await target.transact(write)
        with pytest.raises(StoreError, match=f"claim on a type is damaged: it has {len(damage)} bytes, not 11"):
            await copy_jobs(source, target, sources=Sources(1), start_over=start_over)


@pytest.mark.parametrize("start_over", [False, True])
async def test_a_claim_that_names_no_type_is_in_nobodys_way(start_over: bool) -> None:
    async with two_stores() as (source, target):
        await half_copied(source, target)
        keyspace = Keyspace(await target.prefix())

        async def write(tr: Transaction) -> None:
            tr.set(keyspace.sections[COPYING] + b"\x05", b"")

        await target.transact(write)
        assert not (await copy_jobs(source, target, sources=Sources(1), start_over=start_over)).differing


def test_a_note_is_what_was_noted() -> None:
    note = Note("lmdb:/é", "ff", Phase.REST, "0102", 7, 2, True)
    assert Note.decode(note.encode()) == note
