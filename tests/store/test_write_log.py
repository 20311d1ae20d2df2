"""The sums of atomic additions."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from jobs_service.store.overlay import added


@given(value=st.none() | st.binary(max_size=40), operand=st.binary(min_size=1, max_size=40))
@example(value=b"\xff" * 16, operand=b"\x01" + bytes(15))
@example(value=b"\xff" * 8 + bytes(8), operand=b"\x01" + bytes(15))
@example(value=b"\xff" * 32, operand=b"\xff" * 16)
@example(value=b"\x07", operand=bytes(24))
def test_a_sum_is_as_long_as_the_operand_and_wraps(value: bytes | None, operand: bytes) -> None:
    size = len(operand)
    total = int.from_bytes((value or b"")[:size], "little") + int.from_bytes(operand, "little")
    assert added(value, operand) == (total % (1 << 8 * size)).to_bytes(size, "little")
