"""Checkpoints: where two logs agree."""

from __future__ import annotations

from typing import Any

import pytest

from jobs_service.replication.checkpoints import LOWEST_SEQ, Statistics, common_ancestor


def session(id: str, seq: Any, **fields: Any) -> dict[str, Any]:
    return {"session_id": id, "recorded_seq": seq, **fields}


def log(*sessions: dict[str, Any], **fields: Any) -> dict[str, Any]:
    newest = sessions[0]
    return {
        "_id": "_local/id",
        "_rev": "0-1",
        "session_id": newest["session_id"],
        "source_last_seq": newest["recorded_seq"],
        "history": [*sessions],
        **fields,
    }


EARLY, LATE = session("a", "5-y", missing_checked=50), session("a", "7-x", missing_checked=70)
NEWER, OTHER = session("b", "9-z", missing_checked=90), session("c", "8-z", missing_checked=80)
A5, A7, B3, C9 = session("a", "5"), session("a", "7"), session("b", "3"), session("c", "9")


@pytest.mark.parametrize(
    ("source", "target", "seq"),
    [
        (None, None, LOWEST_SEQ),
        (log(A5), None, LOWEST_SEQ),
        (None, log(A5), LOWEST_SEQ),
        (log(A7, B3), log(A5), "7"),
        (log(LATE), log(EARLY), "5-y"),
        (log(EARLY), log(LATE), "5-y"),
        (log(NEWER, LATE), log(EARLY), "5-y"),
        (log(LATE), log(NEWER, EARLY), "5-y"),
        (log(NEWER, LATE), log(OTHER, EARLY), "5-y"),
        (log(C9, session("b", "7"), A5), log(session("x", "8"), session("b", "7"), A5), "7"),
        (log(A5), log(C9, A5), "5"),
        (log(C9, A5), log(A5), "5"),
        (log(A5), log(session("b", "5")), LOWEST_SEQ),
        (log(session("a", 1), history=[]), log(session("b", 2)), LOWEST_SEQ),
        (log(A5, {"recorded_seq": 3}), log(B3, {"recorded_seq": 4}), LOWEST_SEQ),
        ({"session_id": "a", "history": "none"}, {"history": [3, None]}, LOWEST_SEQ),
    ],
    ids=[
        "no logs",
        "no log of the target",
        "no log of the source",
        "the source of one session was written first",
        "the target has the earlier record",
        "the source has the earlier record",
        "the source has the later record in its history",
        "the target has the earlier record in its history",
        "both have their records in their histories",
        "the newest session that both know",
        "the target has gone on alone",
        "the source has gone on alone",
        "strangers",
        "a history that was cut",
        "sessions without an id",
        "damaged logs",
    ],
)
def test_where_two_logs_agree(source: Any, target: Any, seq: Any) -> None:
    assert common_ancestor(source, target).seq == seq


def test_statistics_and_history_go_on_from_there() -> None:
    source = log(C9, session("a", "7", docs_read=12), B3)
    found = common_ancestor(source, log(session("a", "7"), B3))
    assert found.history == (B3,)
    assert common_ancestor(log(A7), log(A7)).history == (A7,)
    assert common_ancestor(log(session("a", "7", docs_read=12)), log(A7)).statistics == Statistics(docs_read=12)
