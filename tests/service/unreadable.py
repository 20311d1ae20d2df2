"""Jobs whose records cannot be read, for their tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs_service import JobsService, JobState
from jobs_service.layer.keyspace import Keyspace, pack_id
from jobs_service.store import Transaction
from tests.service.support import J1, T1, contents

PENDING, RUNNING, FINISHED = JobState.PENDING, JobState.RUNNING, JobState.FINISHED


def of_a_newer_version(raw: bytes) -> bytes:
    return b"\x04" + raw[1:]


def garbage(raw: bytes) -> bytes:
    return bytes(byte ^ 0xA5 for byte in raw)


def in_several_states(raw: bytes) -> bytes:
    return raw[:1] + b"\x07" + raw[2:]


def with_broken_notes(raw: bytes) -> bytes:
    """More events in the history than it has bytes for."""
    start = 24 + int.from_bytes(raw[22:24], "big") + (16 if raw[1] & 1 else 0) + 4
    return raw[: start + 3] + b"\xff" + raw[start + 4 : start + 14] + b"\xff" * len(raw[start + 14 :])


DAMAGE: list[Callable[[bytes], bytes]] = [
    of_a_newer_version,
    garbage,
    in_several_states,
    lambda raw: raw[:-30],
    lambda raw: b"",
]


async def keyspace_of(jobs: JobsService) -> Keyspace:
    return Keyspace(await jobs.store.prefix(), jobs.store.limits.key)


async def damage(jobs: JobsService, id: str = J1, how: Callable[[bytes], bytes] = garbage) -> bytes:
    """Write something else into a job's record; return what was there."""
    key = (await keyspace_of(jobs)).of(T1).data + pack_id(id)

    async def write(tr: Transaction) -> bytes:
        raw = await tr.get(key)
        assert raw is not None
        tr.set(key, how(raw))
        return raw

    return await jobs.store.transact(write)


async def put(jobs: JobsService, section: int, rest: bytes, value: bytes = b"", *, type: Any = T1) -> bytes:
    """Write a key of a section of a type; return it."""
    keyspace = await keyspace_of(jobs)
    key = keyspace.sections[section] + (keyspace.of(type).packed if type is not None else b"") + rest

    async def write(tr: Transaction) -> None:
        tr.set(key, value)

    await jobs.store.transact(write)
    return key


async def keys_in(jobs: JobsService, *sections: int) -> list[bytes]:
    """Return the keys of sections, without their prefixes."""
    keyspace = await keyspace_of(jobs)
    heads = [keyspace.sections[section] for section in sections]
    found = await contents(jobs)
    return [key[len(head) :] for head in heads for key in found if key.startswith(head)]
