"""What a transaction's conflicts are compared with: whole ranges, whatever pieces they were read in."""

from __future__ import annotations

import pytest

from tests.simulation.claims import depends_on

READ = [(b"c", b"e"), (b"a", b"b\x00"), (b"e", b"g"), (b"m", b"n")]


@pytest.mark.parametrize(
    ("begin", "end", "wanted"),
    [
        (b"a", b"b", True),
        (b"b", b"b\x00", True),
        (b"b", b"c", False),
        (b"c", b"g", True),
        (b"d", b"f", True),
        (b"a", b"g", False),
        (b"f", b"h", False),
        (b"h", b"i", False),
        (b"m", b"n", True),
        (b"m", b"n\x00", False),
    ],
)
def test_a_change_is_a_conflict_where_all_of_it_was_read(begin: bytes, end: bytes, wanted: bool) -> None:
    assert depends_on(READ, begin, end) is wanted
