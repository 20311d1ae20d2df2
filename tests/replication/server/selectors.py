"""Enough of Mango's selectors for feeds of changes."""

import operator
from collections.abc import Callable
from typing import Any

_COMPARE = {"$gt": "gt", "$gte": "ge", "$lt": "lt", "$lte": "le"}


def matches(selector: Any, value: Any) -> bool:
    """Whether the value meets the selector."""
    if not isinstance(selector, dict):
        return bool(selector == value)
    return all(_meets(key, wanted, value) for key, wanted in selector.items())


def _meets(key: str, wanted: Any, value: Any) -> bool:
    match key:
        case "$and":
            return all(matches(each, value) for each in wanted)
        case "$or":
            return any(matches(each, value) for each in wanted)
        case "$not":
            return not matches(wanted, value)
        case "$eq":
            return bool(value == wanted)
        case "$ne":
            return bool(value != wanted)
        case "$in":
            return bool(value in wanted)
        case "$exists":
            return bool((value is not None) == wanted)
        case "$gt" | "$gte" | "$lt" | "$lte":
            if type(value) is not type(wanted):
                return False
            compare: Callable[[Any, Any], bool] = getattr(operator, _COMPARE[key])
            return compare(value, wanted)
        case _:
            return matches(wanted, value.get(key) if isinstance(value, dict) else None)
