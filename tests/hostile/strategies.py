"""Hostile values as hypothesis strategies."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from tests.hostile.inputs import BYTES, NUMBERS, OBJECTS, TEXTS, TIMES, Point


def _one_of(values: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Draw by name: hypothesis shows what it draws from, and these do not like to be shown."""
    return st.sampled_from(sorted(values)).map(lambda name: values[name])


_TEXT = st.one_of(
    _one_of(TEXTS),
    st.text(st.characters(), max_size=20),  # surrogates and control characters among them
    st.integers(0, 12_000).map(lambda size: "y" * size),
)
_BYTES = st.one_of(_one_of(BYTES), st.binary(max_size=20))
_NUMBERS = st.one_of(
    _one_of(NUMBERS),
    st.integers(),
    st.integers(-(2**2100), 2**2100),
    st.floats(),
)
_TIMES = st.one_of(
    _one_of(TIMES),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(timezones=st.integers(-86_399, 86_399).map(lambda offset: timezone(timedelta(seconds=offset)))),
)

_LEAVES = st.one_of(_TEXT, _BYTES, _NUMBERS, _TIMES, _one_of(OBJECTS))


def _larger(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(children, max_size=4),
        st.lists(children, max_size=4).map(tuple),
        st.lists(children, max_size=4).map(lambda items: Point(items, items)),
        st.lists(st.tuples(_TEXT, children), max_size=4).map(dict),
        st.tuples(children, st.integers(1, 300)).map(lambda drawn: _wrapped(*drawn)),
    )


def _wrapped(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = [value] if depth % 2 else (value,)
    return value


MIXED: st.SearchStrategy[Any] = st.recursive(_LEAVES, _larger, max_leaves=12)
"""Anything: recursive mixtures of what is hostile and what is good."""

_JSON_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), _TEXT)
JSON: st.SearchStrategy[Any] = st.recursive(
    _JSON_LEAVES,
    lambda children: st.one_of(
        st.lists(children, max_size=4), st.lists(st.tuples(_TEXT, children), max_size=4).map(dict)
    ),
    max_leaves=20,
)
"""JSON, nearly: numbers that are not finite and texts that are not UTF-8 among it."""
