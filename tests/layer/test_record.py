"""The record: what is encoded is decoded, byte by byte as documented, and what is no record is refused."""

from __future__ import annotations

import struct
from typing import Any

import fdb.tuple
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import JobState, Outcome, StoreError, run_data
from jobs_service.layer.record import LOCK_BYTES, READY, SCHEDULED, Record
from jobs_service.run_data import HistoryKind, JobError
from tests.layer.tuples import NAMES

FIELDS = Record.__slots__


def fields(record: Record) -> dict[str, Any]:
    """Return a record's attributes by name."""
    return {name: getattr(record, name) for name in FIELDS}


def fixed(size: int) -> st.SearchStrategy[bytes]:
    """Bytes of one length."""
    return st.binary(min_size=size, max_size=size)


PRIORITIES = NAMES.map(lambda value: bytes(fdb.tuple.pack((value,))))
RUN_ATS = st.none() | st.floats(allow_nan=False)
NEXTS = st.none() | st.tuples(PRIORITIES, RUN_ATS)
RECORDS = st.builds(
    Record,
    lock=st.none() | fixed(LOCK_BYTES),
    place=st.sampled_from([0, READY, SCHEDULED]),
    seq=fixed(12),
    priority=PRIORITIES,
    run_at=RUN_ATS,
    outcome=st.none() | st.sampled_from(Outcome),
    cancel=st.booleans(),
    next=NEXTS,
    json=st.binary(max_size=30),
    run_data=st.binary(max_size=60),
)

PRIORITY = fdb.tuple.pack((-7,))
NEXT_PRIORITY = fdb.tuple.pack(("low",))


def example(**other: Any) -> Record:
    """Return a running job that was resubmitted and canceled, every field of it distinct."""
    values: dict[str, Any] = {
        "lock": b"L" * 16,
        "place": 0,
        "seq": b"S" * 10 + b"\x01\x02",
        "priority": PRIORITY,
        "run_at": 1.5,
        "outcome": None,
        "cancel": True,
        "next": (NEXT_PRIORITY, 2.5),
        "json": b'{"a":1}',
        "run_data": b"",
    }
    return Record(**{**values, **other})


# round trips


@given(RECORDS)
def test_a_record_comes_back_as_it_was_encoded(record: Record) -> None:
    assert fields(Record.decode(record.encode())) == fields(record)


@given(RECORDS)
def test_the_size_of_a_record_is_enough_for_it_and_for_all_that_it_becomes(record: Record) -> None:
    assert len(record.encode()) <= record.size()
    grown = example(
        priority=record.priority,
        json=record.json,
        next=record.next or (record.priority, None),
        run_data=record.run_data or bytes(run_data.HEAD_BYTES),
    )
    assert len(grown.encode()) <= record.size()


# byte by byte


def test_the_encoding_is_the_documented_one_byte_by_byte() -> None:
    raw = example().encode()
    parts = {
        0: b"\x01",
        1: bytes([1 | 8 | 16]),
        2: b"S" * 10 + b"\x01\x02",
        14: struct.pack(">d", 1.5),
        22: len(PRIORITY).to_bytes(2, "big"),
        24: PRIORITY,
    }
    rest = b"L" * 16 + struct.pack(">d", 2.5) + len(NEXT_PRIORITY).to_bytes(2, "big") + NEXT_PRIORITY + b'{"a":1}'
    for offset, part in parts.items():
        assert raw[offset : offset + len(part)] == part, offset
    assert raw[24 + len(PRIORITY) :] == rest
    assert b"".join(parts.values()) + rest == raw


# states


@pytest.mark.parametrize(
    ("record", "state"),
    [
        (example(), JobState.RUNNING),
        (example(lock=None, place=READY), JobState.PENDING),
        (example(lock=None, place=SCHEDULED), JobState.PENDING),
        (example(lock=None, outcome=Outcome.FAILED), JobState.FINISHED),
    ],
)
def test_the_state_follows_from_lock_and_place(record: Record, state: JobState) -> None:
    assert record.state is state
    assert Record.decode(record.encode()).state is state


# notes


def told(json: int, error: int, most: int) -> Record:
    """Return a running job with so many bytes of data, and an error and a full history."""
    packed = b""
    for number in range(most):
        packed = run_data.with_event(packed, HistoryKind.CRASHED, float(number), "x" * 200)
    packed = run_data.with_part(packed, run_data.ERROR, run_data.error_json(JobError("E", "e" * error)))
    packed = run_data.with_part(packed, run_data.RESULT, b"7")
    return example(json=b"1" * json, run_data=packed)


def test_of_a_record_that_grew_over_the_limit_the_newest_events_and_the_beginning_of_the_error_stay() -> None:
    record = told(1000, 100, 5)
    record.fit(record.size() - 2 * 210 - 50)
    assert [event.at for event in run_data.history_of(record.run_data)] == [4, 3, 2]
    assert run_data.error_of(record.run_data) == JobError("E", "e" * 47 + "…")
    assert run_data.result_of(record.run_data) == 7


def test_a_record_that_is_too_large_without_history_and_error_keeps_its_result() -> None:
    record = told(1000, 100, 5)
    record.fit(record.size() - 5 * 210 - 110)
    assert run_data.history_of(record.run_data) == ()
    assert run_data.error_of(record.run_data) is None
    assert run_data.result_of(record.run_data) == 7


# what is no record


@pytest.mark.parametrize(
    "record",
    [
        example(),
        example(lock=None, place=READY, next=None),
        example(next=None),
        example(run_data=b"noted"),
        example(lock=None, next=None, run_data=b"noted"),
    ],
)
def test_a_record_that_was_cut_anywhere_before_its_data_is_damaged(record: Record) -> None:
    raw = record.encode()
    for end in range(1, len(raw) - len(record.json)):
        with pytest.raises(StoreError, match=r"a job's record is damaged: .+") as caught:
            Record.decode(raw[:end])
        assert not caught.value.retryable
    Record.decode(raw[: len(raw) - len(record.json)])


@given(st.binary(max_size=120))
def test_any_bytes_are_a_record_or_a_store_error(raw: bytes) -> None:
    for bytes_ in (raw, b"\x01" + raw):
        try:
            record = Record.decode(bytes_)
        except StoreError:
            continue
        assert record.lock is None or len(record.lock) == LOCK_BYTES
