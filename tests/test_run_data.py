"""What a job carries beside its data: packed byte by byte as documented, bounded, and damage is noticed."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import StoreError, json_data, run_data
from jobs_service.run_data import (
    ERROR,
    HEAD_BYTES,
    PROGRESS,
    RESULT,
    HistoryEvent,
    HistoryKind,
    JobError,
    Progress,
)

NOW = 1_700_000_000.0
NEW = run_data.started_anew(b"", NOW)
TIMES = st.floats(min_value=0, max_value=1e11)
TEXTS = st.text(max_size=40)
EVENTS = st.tuples(st.sampled_from(HistoryKind), TIMES, TEXTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def full() -> bytes:
    """Return notes with an event of every kind and all parts, that expire."""
    packed = b""
    for number, kind in enumerate(HistoryKind):
        packed = run_data.with_event(packed, kind, NOW + number, f"detail {number}", attempts=1)
    packed = run_data.with_part(packed, RESULT, b'{"width":640}')
    packed = run_data.with_part(packed, ERROR, run_data.error_json(JobError("ValueError", "no", "Traceback")))
    packed = run_data.with_part(packed, PROGRESS, run_data.progress_json(Progress(3, 10, "resizing")))
    return run_data.expiring(packed, NOW + 100)


# The packed form


def test_the_packed_form_is_the_documented_one_byte_by_byte() -> None:
    packed = run_data.with_event(NEW, HistoryKind.STARTED, NOW + 1, "me", attempts=1)
    packed = run_data.with_part(packed, PROGRESS, b'[1,null,""]')
    packed = run_data.with_part(packed, RESULT, b"7")
    packed = run_data.expiring(packed, NOW + 2)
    history = b"\x01" + struct.pack(">d", NOW + 1) + b"\x02me" + b"\x00" + struct.pack(">d", NOW) + b"\x00"
    head = b"\x05" + b"\x00\x01" + b"\x02" + len(history).to_bytes(2, "big") + struct.pack(">d", NOW + 2)
    assert packed == head + history + b"\x00\x00\x00\x017" + b'\x00\x00\x00\x0b[1,null,""]'
    assert len(head) == HEAD_BYTES


@given(st.lists(EVENTS, max_size=30), st.integers(1, 100))
def test_events_come_back_newest_first_and_no_more_than_are_kept(
    events: list[tuple[HistoryKind, float, str]], most: int
) -> None:
    packed = b""
    for kind, at, detail in events:
        packed = run_data.with_event(packed, kind, at, detail, most=most)
    assert list(run_data.history_of(packed)) == [HistoryEvent(*event) for event in reversed(events)][:most]
    run_data.check(packed)


@given(JSON, TEXTS, TEXTS, TEXTS, st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_result_error_and_progress_come_back_and_leave_each_other_alone(
    result: Any, type: str, message: str, traceback: str, done: float
) -> None:
    error = JobError(type, message, traceback)
    progress = Progress(done, None, message)
    packed = NEW
    for part, json in (
        (PROGRESS, run_data.progress_json(progress)),
        (RESULT, json_data.encode(result)),
        (ERROR, run_data.error_json(error)),
    ):
        packed = run_data.with_part(packed, part, json)
    assert (run_data.result_of(packed), run_data.error_of(packed), run_data.progress_of(packed)) == (
        result,
        error,
        progress,
    )
    without = run_data.with_part(packed, RESULT, None)
    assert (run_data.result_of(without), run_data.error_of(without), run_data.progress_of(without)) == (
        None,
        error,
        progress,
    )
    none = run_data.with_part(run_data.with_part(without, ERROR, None), PROGRESS, None)
    assert none == NEW


@given(st.lists(st.integers(-3, 3), max_size=10))
def test_attempts_are_counted_and_never_fall_below_zero(steps: list[int]) -> None:
    packed = NEW
    counted = 0
    for step in steps:
        packed = run_data.with_event(packed, HistoryKind.STARTED, NOW, attempts=step)
        counted = max(counted + step, 0)
    assert run_data.attempts_of(packed) == counted


# Changes


@pytest.mark.parametrize(
    ("detail", "kept"),
    [
        ("x" * 255, "x" * 255),
        ("x" * 256, "x" * 255),
        ("é" * 128, "é" * 127),
        ("€" * 100, "€" * 85),
        ("\U0001f600" * 64, "\U0001f600" * 63),
        ("a lone \ud800 surrogate", "a lone ? surrogate"),
    ],
)
def test_a_detail_is_cut_to_255_bytes_of_whole_characters(detail: str, kept: str) -> None:
    [event] = run_data.history_of(run_data.with_event(b"", HistoryKind.CRASHED, NOW, detail))
    assert event.detail == kept
    assert len(event.detail.encode()) <= 255


# Damage

LOOKS: dict[str, Callable[[bytes], object]] = {
    "check": run_data.check,
    "history": run_data.history_of,
    "result": run_data.result_of,
    "error": run_data.error_of,
    "progress": run_data.progress_of,
    "expiry": run_data.expires_at,
}
CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "started anew": lambda packed: run_data.started_anew(packed, NOW),
    "noted": lambda packed: run_data.with_event(packed, HistoryKind.LOST, NOW, most=3),
    "no attempts": run_data.with_no_attempts,
    "a part": lambda packed: run_data.with_part(packed, RESULT, b"1"),
    "expiring": lambda packed: run_data.expiring(packed, NOW),
    "no history": lambda packed: run_data.with_newest_events(packed, 0),
}


def damaged(change: Callable[[bytearray], object]) -> bytes:
    """Return full notes after a change."""
    raw = bytearray(full())
    change(raw)
    return bytes(raw)


DAMAGES: dict[str, bytes] = {
    "cut within the head": full()[:9],
    "cut within the history": full()[: HEAD_BYTES + 5],
    "cut within the parts": full()[:-1],
    "more behind": full() + b"x",
    "a kind that there is not": damaged(lambda raw: raw.__setitem__(HEAD_BYTES, 99)),
    "a detail that is no UTF-8": damaged(lambda raw: raw.__setitem__(HEAD_BYTES + 10, 0xFF)),
    "fewer events than the history has": damaged(lambda raw: raw.__setitem__(3, raw[3] - 1)),
    "more events than the history has": damaged(lambda raw: raw.__setitem__(3, raw[3] + 1)),
    "a part more than there is": damaged(lambda raw: raw.__setitem__(0, 3)),
    "an error that is no list": run_data.with_part(NEW, ERROR, b"7"),
    "an error of two": run_data.with_part(NEW, ERROR, b'["a","b"]'),
    "an error that is no text": run_data.with_part(NEW, ERROR, b'["a",1,""]'),
    "progress that is no JSON": run_data.with_part(NEW, PROGRESS, b"["),
    "progress of two": run_data.with_part(NEW, PROGRESS, b"[1,2]"),
    "progress of five": run_data.with_part(NEW, PROGRESS, b'[1,2,"",4,5]'),
    "progress that is no number": run_data.with_part(NEW, PROGRESS, b'["1",2,""]'),
    "progress of an attempt that is no number": run_data.with_part(NEW, PROGRESS, b'[1,2,"",{}]'),
    "a result that is no JSON": run_data.with_part(NEW, RESULT, b"{"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_the_check_notices(what: str) -> None:
    with pytest.raises(StoreError, match="damaged") as caught:
        run_data.check(DAMAGES[what])
    assert not caught.value.retryable
    assert len(str(caught.value).splitlines()) == 1


@given(st.binary(max_size=80), st.integers(0, len(full())), st.integers(0, 255))
def test_whatever_the_bytes_are_they_are_read_and_changed_or_refused(raw: bytes, position: int, byte: int) -> None:
    patched = full()[:position] + bytes([byte]) + full()[position + 1 :]
    for packed in (raw, patched, patched[:position]):
        for call in (*LOOKS.values(), *CHANGES.values()):
            with contextlib.suppress(StoreError):
                call(packed)


def test_limits_of_one_job_are_kept_beside_the_rest_and_when_it_runs_again() -> None:
    packed = run_data.with_part(NEW, run_data.LIMITS, run_data.limits_json(3, None))
    packed = run_data.with_part(run_data.with_part(packed, RESULT, b"7"), PROGRESS, b'[1,null,"",1]')
    assert (run_data.limits_of(packed), run_data.result_of(packed)) == ((3, None), 7)
    again = run_data.started_anew(packed, 5.0)
    assert (run_data.limits_of(again), run_data.result_of(again), run_data.attempts_of(again)) == ((3, None), None, 0)
    run_data.check(again)
    assert run_data.limits_of(b"") == run_data.limits_of(NEW) == (None, None)


@pytest.mark.parametrize("json", [b"[", b"7", b"[1]", b'["a",1]', b"[0,1]", b"[1,-1]", b"[true,1]"])
def test_damaged_limits_are_none_for_who_runs_the_job_and_noticed_by_the_check(json: bytes) -> None:
    packed = run_data.with_part(NEW, run_data.LIMITS, json)
    assert run_data.limits_of(packed) == (None, None)
    with pytest.raises(StoreError, match="damaged"):
        run_data.check(packed)
