"""What the words of some mutants need beside what the module of their function knows."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any, cast

import fdb.tuple

from jobs_service.actors.context import Context
from jobs_service.layer.keyspace import PERIODIC, TypeKeys, unpack_id
from jobs_service.layer.record import Entry
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.runner.ticker import Periodic

__all__ = [
    "asyncio",
    "by_number",
    "by_snapshot",
    "narrow",
    "remember",
    "watch_of",
    "with_flags_exchanged",
    "with_outcomes_exchanged",
]


async def by_snapshot(unit: UnitOfWork, keys: TypeKeys, packed_ids: Sequence[bytes]) -> list[Entry]:
    """Do what Unit.load_many does, without read conflicts."""
    wanted = {keys.data + packed_id: packed_id for packed_id in packed_ids}
    missing = [data_key for data_key in wanted if data_key not in unit.entries]
    raws = await unit.transaction.snapshot.get_many(missing)
    for data_key, raw in zip(missing, raws, strict=True):
        unit.entries[data_key] = Entry(keys, unpack_id(wanted[data_key]), wanted[data_key], raw)
    return [unit.entries[data_key] for data_key in wanted]


def by_number(marks: Any) -> bytes:
    """Name a mark by a token, which is drawn once, and a number."""
    if not hasattr(marks, "token"):
        marks.token = marks._draw(12)
    name: bytes = marks.token + marks.made.to_bytes(4, "big")
    return name


async def remember(context: Context, periodic: Periodic, last: float) -> None:
    """Note a tick in a transaction of its own."""

    async def note(unit: UnitOfWork) -> None:
        key = unit.keyspace.sections[PERIODIC] + unit.keyspace.of(periodic.handler.type).packed
        unit.transaction.set(key, fdb.tuple.pack((last,)))

    await context.retried(lambda: context.transact(note), type=periodic.handler.type)


async def watch_of(transaction: Any, key: bytes) -> Any:
    return transaction.watch(key)


def narrow(seconds: float) -> float:
    """Return a time with the precision of 32 bits."""
    return cast("float", struct.unpack(">f", struct.pack(">f", seconds))[0])


def with_flags_exchanged(flags: int) -> int:
    return flags & ~24 | flags << 1 & 16 | flags >> 1 & 8


def with_outcomes_exchanged(flags: int) -> int:
    return flags ^ 32 if flags & 64 else flags
