"""What is counted of a type, in lanes of one integer, and of a minute or an hour of it."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from tests.reader.tuples import Undocumented

_LANES_OF_STATES: Final = (
    "ready",
    "scheduled",
    "running",
    "succeeded",
    "failed",
    "canceled",
    "ready after a crash",
    "scheduled after a crash",
)
_TOTALS: Final = ("added", "started", "succeeded", "failed", "canceled", "crashed", "lost", "released", "expired")
_BUCKETS: Final = 32


class Counts(NamedTuple):
    """What is counted of a type, or of a minute or an hour of it.

    Attributes:
        states: jobs by the name of their lane; empty in an interval.
        totals: events by name.
        waited, ran: times by bucket.
        sums: of both, in milliseconds.
    """

    states: dict[str, int]
    totals: dict[str, int]
    waited: tuple[int, ...]
    ran: tuple[int, ...]
    sums: tuple[int, int]


def uncounted_or_nothing(raw: bytes) -> bool:
    """Whether a job that is set aside is no longer counted."""
    if raw not in (b"", b"\x01"):
        raise Undocumented(f"neither nothing nor the byte 1: {raw!r}")
    return bool(raw)


def counts(raw: bytes) -> Counts:
    """Return what is counted of a type."""
    states, totals, waited, ran = len(_LANES_OF_STATES), len(_TOTALS), _BUCKETS + 1, _BUCKETS + 1
    if len(raw) != 8 * (states + totals + waited + ran):
        raise Undocumented(f"counts of {len(raw)} bytes")
    lanes = []
    whole = int.from_bytes(raw, "little", signed=True)
    for _ in range(len(raw) // 8):
        lane = whole & 0xFFFF_FFFF_FFFF_FFFF
        lanes.append(lane - (lane >> 63 << 64))
        whole = (whole - lanes[-1]) >> 64
    behind = states + totals
    waited_lanes, ran_lanes = lanes[behind : behind + waited], lanes[behind + waited :]
    return Counts(
        dict(zip(_LANES_OF_STATES, lanes, strict=False)),
        dict(zip(_TOTALS, lanes[states:], strict=False)),
        tuple(waited_lanes[:-1]),
        tuple(ran_lanes[:-1]),
        (waited_lanes[-1], ran_lanes[-1]),
    )


def interval(raw: bytes) -> Counts:
    """Return what is counted of a minute or an hour of a type."""
    layout = struct.Struct(f"<{len(_TOTALS) + 2 * _BUCKETS}I2Q")
    if len(raw) != layout.size:
        raise Undocumented(f"counts of {len(raw)} bytes")
    *lanes, waited, ran = layout.unpack(raw)
    totals = dict(zip(_TOTALS, lanes, strict=False))
    buckets = lanes[len(_TOTALS) :]
    return Counts({}, totals, tuple(buckets[:_BUCKETS]), tuple(buckets[_BUCKETS:]), (waited, ran))
