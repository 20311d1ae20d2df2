"""The bytes of a record: its layout, and the tables by which it is packed, unpacked and checked.

A fixed head, then the optional fields, then the JSON, which is decoded on demand. On two cores, with CPython 3.11 and a
head of twice the length, packing takes 0.4 microseconds and unpacking 0.5; the same fields as a tuple-layer tuple take
9.0 and 8.3. Integers are big-endian:

| offset | bytes | field                                                                                             |
|--------|-------|---------------------------------------------------------------------------------------------------|
| 0      | 1     | format version: 1                                                                                 |
| 1      | 1     | flags: 1 running (a lock follows), 2 ready, 4 scheduled, 8 resubmit, 16 cancel;                    |
|        |       | bits 5 and 6: outcome (0 none, 1 succeeded, 2 failed, 3 canceled); 128 run data                 |
| 2      | 12    | seq: 10 bytes versionstamp, 2 bytes order within the transaction                                  |
| 14     | 8     | run_at, a double: seconds since the epoch; NaN for none                                           |
| 22     | 2     | p: length of the priority                                                                         |
| 24     | p     | priority, as the tuple layer packs it                                                             |
|        | 16    | lock, if running: random, behind the id of the store's instance (8) if it has one                  |
|        | 10+q  | if resubmit: the next run's run_at (8), q (2) and priority (q)                                    |
|        | 4+n   | if run data: n (4) and the run data (jobs_service/run_data.py)                                    |
|        | rest  | data as JSON, UTF-8; nothing for None                                                             |
"""

from __future__ import annotations

import math
import struct
from typing import Final

from jobs_service.arguments import EARLIEST, LATEST
from jobs_service.errors import RecordDamaged
from jobs_service.layer.key_parts import is_priority
from jobs_service.model import Outcome
from jobs_service.run_data import HEAD_BYTES

VERSION: Final = 1
LOCK_BYTES: Final = 16

RUNNING: Final = 1
READY: Final = 2
SCHEDULED: Final = 4
RESUBMIT: Final = 8
CANCEL: Final = 16
RUN_DATA: Final = 128
OUTCOME_SHIFT = 5
PLACE = READY | SCHEDULED

HEAD = struct.Struct(">BB12sdH")
AFTER_STAMP = struct.Struct(">2sdH")
BEFORE_STAMP: Final = tuple(bytes((VERSION, flags)) for flags in range(256))
"""Version and flags as bytes, by flags: a lookup takes 10 ns, making them 60."""

NEXT = struct.Struct(">dH")
SIZE = struct.Struct(">I")
FIXED: Final = HEAD.size + LOCK_BYTES + NEXT.size + SIZE.size
LARGEST_HEAD: Final = FIXED + HEAD_BYTES
"""Most bytes in `Record.size` beside twice the bytes of the priorities, and those of run data and data."""

NAN = math.nan

OUTCOMES: Final = (None, Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED)
ONE_STATE: Final = tuple(
    (flags & RUNNING > 0) + (flags & READY > 0) + (flags & SCHEDULED > 0) + (flags >> OUTCOME_SHIFT & 3 > 0) == 1
    and (flags & RUNNING > 0 or not flags & CANCEL)
    for flags in range(256)
)
"""Whether a job with these flags is in exactly one state, and canceled only while it runs."""

DECODED: Final = tuple(
    (
        flags & PLACE,
        OUTCOMES[flags >> OUTCOME_SHIFT & 3],
        flags & CANCEL > 0,
        not good or flags & (SCHEDULED | RESUBMIT) > 0,
    )
    for flags, good in enumerate(ONE_STATE)
)
"""Place, outcome and cancel flag by flags; and whether the rest of the record must be checked as well."""

ENDED: Final = {
    outcome: code << OUTCOME_SHIFT | RUN_DATA for code, outcome in enumerate(OUTCOMES) if outcome is not None
}
"""The flags of finished jobs."""

ZERO_PRIORITY: Final = b"\x14"

# Nearly all records are of jobs with the default priority that run or do not: two layouts, each one step.
USUAL_PRIORITY: Final = len(ZERO_PRIORITY).to_bytes(2, "big") + ZERO_PRIORITY
AT_PRIORITY: Final = slice(HEAD.size - 2, HEAD.size + len(ZERO_PRIORITY))
USUAL_AT_REST: Final[dict[bytes, tuple[int, Outcome | None]]] = {
    bytes((VERSION, READY | RUN_DATA)): (READY, None),
    **{bytes((VERSION, flags)): (0, outcome) for outcome, flags in ENDED.items()},
}
AT_REST_HEAD = struct.Struct(">2x12sd3xI")
AT_REST_AFTER_STAMP = struct.Struct(">2sd3sI")
USUAL_RUNNING: Final = bytes((VERSION, RUNNING | RUN_DATA))
RUNNING_HEAD = struct.Struct(f">2x12sd3x{LOCK_BYTES}sI")
RUNNING_AFTER_STAMP = struct.Struct(f">2sd3s{LOCK_BYTES}sI")
LEAST_AT_REST: Final = AT_REST_HEAD.size + HEAD_BYTES
LEAST_RUNNING: Final = RUNNING_HEAD.size + HEAD_BYTES


def lock_in(raw: bytes | None) -> bytes | None:
    """Return the lock in a record as stored, without decoding the rest; None if it has none or cannot be read."""
    if raw is None or len(raw) < HEAD.size or raw[0] != VERSION or not raw[1] & RUNNING:
        return None
    start = HEAD.size + int.from_bytes(raw[HEAD.size - 2 : HEAD.size], "big")
    return raw[start : start + LOCK_BYTES]


def check_state(flags: int, run_at: float, run_data: bytes) -> None:
    """Check flags, and the fields that they require."""
    if not ONE_STATE[flags] or (flags & SCHEDULED and run_at != run_at):
        raise RecordDamaged(f"a job's record is damaged: its flags are {flags:#x}, which no job has")
    if 0 < len(run_data) < HEAD_BYTES:
        raise RecordDamaged(f"a job's record is damaged: its run data have {len(run_data)} bytes")


def check_run(priority: bytes, run_at: float) -> None:
    """Check priority and time of a run."""
    if not is_priority(priority):
        raise RecordDamaged("a job's record is damaged: a priority that the tuple layer did not pack")
    if run_at == run_at and not EARLIEST <= run_at <= LATEST:
        raise RecordDamaged(f"a job's record is damaged: a time, {run_at}, that no calendar has")


def of_another_version(raw: bytes) -> RecordDamaged:
    return RecordDamaged(f"a job's record has version {raw[:1].hex() or 'none'}; this one reads version 01: upgrade")
