"""The application's own keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jobs_service import JobTransaction
from jobs_service.store import KeySelector
from tests.hostile.world import Result, Target, World

OWN = b"own/"
BELOW_EVERYTHING = b"\x00\x00\x01"


def _of_kv(name: str, operation: Callable[[Any, Any], Any], *, reads: bool = False) -> list[Target]:
    """Return the target in a transaction that has written nothing yet, and in one that has."""

    def target(how: str, prepare: Callable[[Any], Any]) -> Target:
        async def call(world: World, value: Any) -> Result:
            async def work(tx: JobTransaction) -> Result:
                kv = prepare(tx.kv)
                result = operation(kv, value)
                return await result if reads else result

            result = await world.jobs.transact(work)
            if hasattr(type(result), "on_fire"):
                result.cancel()
            return result

        return Target(f"kv{how}: {name}", call)

    targets = [target("", lambda kv: kv), target(" with writes", _with_writes)]
    return [*targets, target(" snapshot", lambda kv: _with_writes(kv).snapshot)] if reads else targets


def _with_writes(kv: Any) -> Any:
    kv.set(b"own/set", b"1")
    kv.add(b"own/added", b"\x01")
    kv.clear_range(b"own/x", b"own/y")
    kv.set_versionstamped_value(b"own/stamped", b"\x00" * 14)
    return kv


def _delete_slice(kv: Any, start: Any, stop: Any, step: Any = None) -> None:
    del kv[start:stop:step]


KV = [
    *_of_kv("key of get", lambda kv, v: kv.get(v), reads=True),
    *_of_kv("keys of get_many", lambda kv, v: kv.get_many(v), reads=True),
    *_of_kv("a key of get_many", lambda kv, v: kv.get_many([OWN, v]), reads=True),
    *_of_kv("begin of get_range", lambda kv, v: kv.get_range(v, BELOW_EVERYTHING), reads=True),
    *_of_kv("end of get_range", lambda kv, v: kv.get_range(b"own/u", v), reads=True),
    *_of_kv("limit of get_range", lambda kv, v: kv.get_range(b"own/s", b"own/sf", limit=v), reads=True),
    *_of_kv("reverse of get_range", lambda kv, v: kv.get_range(b"own/s", b"own/sf", reverse=v), reads=True),
    *_of_kv("selector's key", lambda kv, v: kv.get_range(KeySelector(v, False, 1), b"\x00\x01"), reads=True),
    *_of_kv("selector's kind", lambda kv, v: kv.get_range(b"own/u", KeySelector(b"own/v", v, 1)), reads=True),
    *_of_kv("selector's offset", lambda kv, v: kv.get_range(b"p", KeySelector(b"p", False, v)), reads=True),
    *_of_kv("key of set", lambda kv, v: kv.set(v, b"x")),
    *_of_kv("value of set", lambda kv, v: kv.set(b"own/k", v)),
    *_of_kv("key of []", lambda kv, v: kv.__setitem__(v, b"x")),
    *_of_kv("value of []", lambda kv, v: kv.__setitem__(b"own/k", v)),
    *_of_kv("key of del", lambda kv, v: kv.__delitem__(v)),
    *_of_kv("start of del", lambda kv, v: _delete_slice(kv, v, BELOW_EVERYTHING) if v is not None else None),
    *_of_kv("stop of del", lambda kv, v: _delete_slice(kv, b"own/u", v)),
    *_of_kv("step of del", lambda kv, v: _delete_slice(kv, b"own/u", b"own/v", v)),
    *_of_kv("key of clear", lambda kv, v: kv.clear(v)),
    *_of_kv("begin of clear_range", lambda kv, v: kv.clear_range(v, BELOW_EVERYTHING)),
    *_of_kv("end of clear_range", lambda kv, v: kv.clear_range(b"own/u", v)),
    *_of_kv("key of add", lambda kv, v: kv.add(v, b"\x01")),
    *_of_kv("operand of add", lambda kv, v: kv.add(b"own/sum", v)),
    *_of_kv("key of set_versionstamped_key", lambda kv, v: kv.set_versionstamped_key(v, b"x")),
    *_of_kv(
        "value of set_versionstamped_key",
        lambda kv, v: kv.set_versionstamped_key(b"own/" + bytes(10) + b"\x04\x00\x00\x00", v),
    ),
    *_of_kv("key of set_versionstamped_value", lambda kv, v: kv.set_versionstamped_value(v, bytes(14))),
    *_of_kv("value of set_versionstamped_value", lambda kv, v: kv.set_versionstamped_value(b"own/v", v)),
    *_of_kv("stamp_key before", lambda kv, v: kv.stamp_key(v, b"", b"x")),
    *_of_kv("stamp_key after", lambda kv, v: kv.stamp_key(b"own/", v, b"x")),
    *_of_kv("stamp_value before", lambda kv, v: kv.stamp_value(b"own/w", v, b"")),
    *_of_kv("stamp_value after", lambda kv, v: kv.stamp_value(b"own/w", b"", v)),
    *_of_kv("key of add_read_conflict_key", lambda kv, v: kv.add_read_conflict_key(v)),
    *_of_kv("begin of add_read_conflict_range", lambda kv, v: kv.add_read_conflict_range(v, b"own/")),
    *_of_kv("end of add_read_conflict_range", lambda kv, v: kv.add_read_conflict_range(b"own/", v)),
    *_of_kv("key of watch", lambda kv, v: kv.watch(v)),
]
