"""JSON of documents: the same after decoding and encoding."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service.replication.bodies import decoded, encoded
from jobs_service.replication.contract import ProtocolError

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(_values)
def test_a_document_stays_what_it_was(value: Any) -> None:
    text = json.dumps(value).encode()
    assert json.loads(encoded(decoded(text))) == value


@pytest.mark.parametrize("text", [b'"\\ud800"', b'{"a":1.0,"b":1}', b"123456789012345678901234567890", b'"\\u0000"'])
def test_unusual_values_stay_what_they_were(text: bytes) -> None:
    assert json.dumps(json.loads(encoded(decoded(text)))) == json.dumps(json.loads(text))


@pytest.mark.parametrize("text", [b"", b"{", b"NaN", b'{"a":1} x', b"\xff", b"[" * 100_000])
def test_what_is_not_json_is_an_error_of_the_protocol(text: bytes) -> None:
    with pytest.raises(ProtocolError):
        decoded(text)


def test_a_number_beyond_all_bounds_does_not_become_null() -> None:
    assert encoded(decoded(b"[1e999]")) == b"[Infinity]"
