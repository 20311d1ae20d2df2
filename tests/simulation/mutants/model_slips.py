"""Defects of which the service sees nothing: what is written wrong is read wrong, or times are by another clock."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jobs_service import run_data
from jobs_service.layer import enqueueing, key_parts, running_jobs
from jobs_service.layer.record import Record
from jobs_service.layer.unit_of_work import UnitOfWork
from jobs_service.model import unpack_priority
from jobs_service.model.type_state import Retention
from jobs_service.runner.execution import Execution
from tests.simulation.mutants.mutant import Defect, Mutant, changed, together

_LOOKED_AT = "            if version not in READABLE:\n"
"""What follows in Record._decode when the head was taken apart."""

_RUN_AT = "NAN if run_at is None else run_at"

# Written and read alike


def _with_flags(stored: Callable[[int], int]) -> Defect:
    """Have the flags of a record stored as others; what makes others of them must make them of the others as well."""
    return together(
        changed(Record._around_stamp, ("BEFORE_STAMP[flags]", "BEFORE_STAMP[stored(flags)]"), stored=stored),
        changed(
            Record.around_stamp,
            ("return BEFORE_STAMP[flags]", "return BEFORE_STAMP[stored(flags)]"),
            ("return USUAL_RUNNING,", "return BEFORE_STAMP[stored(USUAL_RUNNING[1])],"),
        ),
        changed(
            Record.decode.__func__,  # type: ignore[attr-defined]
            ("kind = raw[:2]", "kind = raw[:1] + bytes((stored(raw[1]),))"),
        ),
        changed(
            Record._decode.__func__,  # type: ignore[attr-defined]
            (
                "            if version not in READABLE:\n",
                "            flags = stored(flags)\n            if version not in READABLE:\n",
            ),
        ),
    )


def the_flags_of_cancel_and_resubmit_change_places() -> Defect:
    """A canceled job is stored as one that is to run again, and read as a canceled one."""
    return _with_flags(lambda flags: flags & ~24 | flags << 1 & 16 | flags >> 1 & 8)


def the_codes_of_two_outcomes_change_places() -> Defect:
    """A job that has failed is stored as one that was canceled, and read as one that has failed."""
    return _with_flags(lambda flags: flags ^ 32 if flags & 64 else flags)


def a_jobs_time_is_stored_in_milliseconds() -> Defect:
    """The record has run_at in milliseconds, and whoever reads it makes seconds of them."""
    return together(
        changed(Record._around_stamp, (_RUN_AT, f"{_RUN_AT} * 1000.0")),
        changed(
            Record._decode.__func__,  # type: ignore[attr-defined]
            (
                "            if version not in READABLE:\n",
                "            run_at /= 1000.0\n            if version not in READABLE:\n",
            ),
        ),
    )


def a_jobs_time_is_stored_in_32_bits() -> Defect:
    """The record has run_at with the precision of a float, which is that of two minutes."""
    return changed(
        Record._around_stamp,
        (_RUN_AT, "NAN if run_at is None else narrow(run_at)"),
        narrow=lambda seconds: struct.unpack(">f", struct.pack(">f", seconds))[0],
    )


def parts_of_the_notes_are_in_another_order() -> Defect:
    """Limits come first, and the result last, for whoever writes and reads them."""
    return together(
        changed(run_data.with_part, ("for each in _PARTS if", "for each in reversed(_PARTS) if")),
        changed(run_data._parts, ("for part in _PARTS:", "for part in reversed(_PARTS):")),
    )


def a_jobs_expiry_is_a_whole_second() -> Defect:
    """What is told of a job has room for whole seconds only, and so has its row of EXPIRING."""
    return changed(run_data.expiring, ("count, size, at)", "count, size, float(int(at)))"))


@contextmanager
def _with_events(*defects: Defect) -> Iterator[None]:
    """Have events packed otherwise; those that were packed before and meanwhile are forgotten."""
    run_data._event.cache_clear()
    try:
        with together(*defects):
            yield
    finally:
        run_data._event.cache_clear()


def every_kind_of_event_is_stored_as_its_neighbour() -> Defect:
    """A history says `started` where a job was added, and is read as one that says `added`."""
    return _with_events(
        changed(run_data._event.__wrapped__, ("_KINDS.index(kind)", "_KINDS.index(kind) ^ 1")),
        changed(run_data.started_anew, ("_EVENT.pack(0, now, 0)", "_EVENT.pack(1, now, 0)")),
        changed(run_data.history_of, ("_KINDS[code]", "_KINDS[code ^ 1]")),
    )


def events_are_stored_in_milliseconds() -> Defect:
    """A history has its times in milliseconds, and whoever reads it makes seconds of them."""
    return _with_events(
        changed(run_data._event.__wrapped__, ("_KINDS.index(kind), now,", "_KINDS.index(kind), now * 1000.0,")),
        changed(run_data.started_anew, ("_EVENT.pack(0, now, 0)", "_EVENT.pack(0, now * 1000.0, 0)")),
        changed(run_data.history_of, ("_KINDS[code], at,", "_KINDS[code], at / 1000.0,")),
    )


def ids_that_are_text_are_stored_as_bytes() -> Defect:
    """Keys have text and bytes alike, and every id that is read is text."""
    return together(
        changed(key_parts.pack_id, (r'return b"\x02" + id.encode()', r'return b"\x01" + id.encode()')),
        changed(key_parts.unpack_id, ("if packed[0] == 2 else raw", "if True else raw")),
    )


def higher_priorities_run_first() -> Defect:
    """Priorities that are numbers are stored with the other sign, and shown with the one that was asked for."""
    negated = "-priority if priority.__class__ is int else priority"
    return together(
        changed(key_parts.pack_priority, ('_pack("priority", priority)', f'_pack("priority", {negated})')),
        changed(unpack_priority, ("return priority", f"return {negated}")),
    )


def the_times_of_a_retention_change_places() -> Defect:
    """How long jobs are kept that failed is stored first, and read as what it is."""
    return together(
        changed(Retention.encode, ("tuple(self)", "tuple(self)[::-1]")),
        changed(Retention.decode.__func__, ("cls(*kept)", "cls(*kept[::-1])")),  # type: ignore[attr-defined]
    )


# Other clocks


def units_go_by_the_loops_clock() -> Defect:
    """What is now is what the loop's monotonic clock says."""
    return changed(UnitOfWork.__init__, ("sources.wall_time()", "asyncio.get_running_loop().time()"), asyncio=asyncio)


def units_go_by_whole_seconds() -> Defect:
    """What is now is the second that has begun."""
    return changed(UnitOfWork.__init__, ("sources.wall_time()", "float(int(sources.wall_time()))"))


def time_never_goes_back_in_a_history() -> Defect:
    """An event is no earlier than the one before it, whose process's clock may have been ahead."""
    return changed(
        run_data.with_event,
        (
            "    event = _event(kind, now, detail)\n",
            "    event = _event(kind, max(now, _EVENT.unpack_from(rest)[1]) if count else now, detail)\n",
        ),
    )


def delays_go_by_the_loops_clock() -> Defect:
    """A job with a delay is due so long after the loop's time, which is long ago."""
    return changed(enqueueing.due, ("sources.wall_time()", "asyncio.get_running_loop().time()"), asyncio=asyncio)


def jobs_expire_so_long_after_they_were_added() -> Defect:
    """How long a finished job is kept counts from the oldest event of its history."""
    return changed(running_jobs._end, ("unit.now + keep", "run_data.history_of(packed)[-1].at + keep"))


def retries_count_from_the_start_of_the_run() -> Defect:
    """The pause before another attempt begins when the failed one began."""
    return changed(
        Execution._failed,
        ("now = self._sources.wall_time()", "now = job.history[0].at if job.history else self._sources.wall_time()"),
    )


def snoozes_count_from_the_start_of_the_run() -> Defect:
    """A job that puts itself off comes back so long after its run began."""
    return changed(Execution._raised, ("self._sources.wall_time() + seconds", "job.history[0].at + seconds"))


ALL = (
    Mutant(the_flags_of_cancel_and_resubmit_change_places),
    Mutant(the_codes_of_two_outcomes_change_places),
    Mutant(a_jobs_time_is_stored_in_milliseconds),
    Mutant(a_jobs_time_is_stored_in_32_bits),
    Mutant(parts_of_the_notes_are_in_another_order),
    Mutant(a_jobs_expiry_is_a_whole_second),
    Mutant(every_kind_of_event_is_stored_as_its_neighbour),
    Mutant(events_are_stored_in_milliseconds),
    Mutant(ids_that_are_text_are_stored_as_bytes),
    Mutant(higher_priorities_run_first),
    Mutant(the_times_of_a_retention_change_places),
    Mutant(units_go_by_the_loops_clock),
    Mutant(units_go_by_whole_seconds),
    Mutant(time_never_goes_back_in_a_history),
    Mutant(delays_go_by_the_loops_clock),
    Mutant(jobs_expire_so_long_after_they_were_added),
    Mutant(retries_count_from_the_start_of_the_run),
    Mutant(snoozes_count_from_the_start_of_the_run),
)
