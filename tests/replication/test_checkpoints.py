"""Checkpoints: where two logs agree, and what is written to which database when."""

from __future__ import annotations

from typing import Any


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
