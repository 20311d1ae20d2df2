"""How much of a command's output is kept."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from jobs_service import json_data
from jobs_service.runner.commands import CommandResult


class TestWithin:
    @settings(max_examples=50)
    @given(st.text(max_size=60), st.text(max_size=60), st.integers(0, 400), st.booleans())
    @example("x" * 16, "x" * 16, 31, False)
    def test_leaves_out_the_oldest_output_until_the_data_fits(
        self, stdout: str, stderr: str, room: int, cut: bool
    ) -> None:
        result = CommandResult(3, None, stdout, stderr, cut, 0.25)
        bare = len(json_data.encode(CommandResult(3, None, "", "", False, 0.25).to_data()))
        short = result.within(bare + room)
        assert len(json_data.encode(short.to_data())) <= bare + room
        assert stdout.endswith(short.stdout)
        assert stderr.endswith(short.stderr)
        assert short.cut == (cut or (short.stdout, short.stderr) != (stdout, stderr))
        if len(json_data.encode(result.to_data())) + cut <= bare + room:
            assert short == result
        elif short.stdout != stdout and short.stderr != stderr:
            assert len(json_data.encode(short.to_data())) >= bare + room - 2 * 6 - 2, "no more than must be"

    def test_gives_the_room_that_one_output_leaves_to_the_other(self) -> None:
        result = CommandResult(0, None, "o" * 1000, "error", False, 0.25)
        short = result.within(500)
        assert short.stderr == "error"
        assert len(json_data.encode(short.to_data())) == 499, "one less, for true is shorter than false"

    def test_leaves_nothing_when_there_is_no_room(self) -> None:
        short = CommandResult(0, None, "out", "err", False, 0.25).within(0)
        assert (short.stdout, short.stderr, short.cut) == ("", "", True)
