"""Types, ids and priorities as text."""

from __future__ import annotations

from typing import Any

import fdb.tuple
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import names
from jobs_service.cli.parsing import parse_id, parse_priority, parse_type

encodable = st.text(st.characters(codec="utf-8"))
scalars = encodable | st.binary() | st.integers(min_value=-(2**63), max_value=2**63)
nested = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)


@given(nested)
def test_what_is_shown_can_be_typed(value: Any) -> None:
    again = names.parsed(names.shown(value))
    assert again == value
    assert fdb.tuple.pack((again,)) == fdb.tuple.pack((value,))


@given(nested)
def test_nothing_shown_acts_on_a_terminal_or_looks_like_an_option(value: Any) -> None:
    text = names.shown(value)
    assert text
    assert text.isprintable()
    assert text == text.strip()
    assert not text.startswith("-")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("email", "email"),
        ("two words", "two words"),
        ("naïve 日本", "naïve 日本"),
        ("", 'json:""'),
        (" padded", 'json:" padded"'),
        ("--force", 'json:"--force"'),
        ("json:1", 'json:"json:1"'),
        ("bell\a", 'json:"bell\\u0007"'),
        ("left\u202eright", 'json:"left\\u202eright"'),
        ("\U000e0001", 'json:"\\udb40\\udc01"'),
        (7, "json:7"),
        (b"\x00\xff", 'json:{"bytes":"00ff"}'),
        (("a", 1, (b"",)), 'json:["a",1,[{"bytes":""}]]'),
    ],
)
def test_a_plain_string_is_itself_and_everything_else_is_json(value: Any, text: str) -> None:
    assert names.shown(value) == text
    assert names.parsed(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "json:",
        "json:{",
        "json:NaN",
        "json:[Infinity]",
        'json:{"hex":"00"}',
        'json:{"bytes":"0"}',
        'json:{"bytes":1}',
        'json:"\\ud800"',
        "\udcff",
        "json:" + "[" * 100_000,
    ],
)
def test_what_names_nothing_is_refused_with_the_argument_it_was_given_for(text: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        parse_type(text)
    assert refused.value.param_hint == "TYPE"
    with pytest.raises(typer.BadParameter) as refused:
        parse_id(text)
    assert refused.value.param_hint == "ID"
    with pytest.raises(typer.BadParameter) as refused:
        parse_priority(text)
    assert refused.value.param_hint == "--priority"
