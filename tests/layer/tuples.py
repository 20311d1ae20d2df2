"""Types, ids and priorities of every kind, for property-based tests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.one_of(st.just("\x00"), st.characters(exclude_categories=["Cs"])), max_size=12)
BYTES = st.one_of(st.binary(max_size=12), st.lists(st.sampled_from([0, 1, 0x33, 255]), max_size=8).map(bytes))
INTEGERS = st.one_of(
    st.integers(-(1 << 72), 1 << 72),
    st.integers(0, 80).flatmap(
        lambda bits: st.sampled_from([(1 << bits) - 1, 1 << bits, -(1 << bits), 1 - (1 << bits)])
    ),
    st.integers(-(1 << 1900), 1 << 1900),
)
ELEMENTS: st.SearchStrategy[Any] = st.one_of(
    INTEGERS,
    TEXT,
    BYTES,
)
TUPLES = st.recursive(
    st.lists(ELEMENTS, max_size=4).map(tuple),
    lambda inner: st.lists(st.one_of(ELEMENTS, inner), max_size=4).map(tuple),
    max_leaves=12,
)
NAMES = st.one_of(TEXT, BYTES, INTEGERS, TUPLES)
"""What types and priorities can be."""

IDS = st.one_of(TEXT, BYTES)
