"""How damaged jobs are told from others: they are no part of the history. Their ids begin with a mark."""

from __future__ import annotations

from typing import Final

DAMAGED: Final = "damaged-"
"""What the ids of damaged jobs begin with."""

MARK: Final = DAMAGED.encode()


def is_damage(key: bytes, value: bytes | None = None) -> bool:
    """Whether a key, or what its value names, belongs to a damaged job."""
    return MARK in key or (value is not None and MARK in value)
