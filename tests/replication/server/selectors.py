"""Enough of Mango's selectors for feeds of changes."""

from typing import Any


def matches(selector: Any, value: Any) -> bool:
    """Whether the value meets the selector."""
    if not isinstance(selector, dict):
        return bool(selector == value)
    return all(_meets(key, wanted, value) for key, wanted in selector.items())


def _meets(key: str, wanted: Any, value: Any) -> bool:
    if key == "$gt":
        return type(value) is type(wanted) and bool(value > wanted)
    return matches(wanted, value.get(key) if isinstance(value, dict) else None)
