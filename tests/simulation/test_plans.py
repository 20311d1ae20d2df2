"""A plan as text says the same plan again, and a text that is wrong is refused with the part that is."""

from __future__ import annotations

import re
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service.testing.loop import Plan
from tests.simulation.plans import only_text, parse_only, replay_command

NUMBERS = st.integers(0, 40) | st.integers(0, 10**9)
KINDS = st.sampled_from(["conflict", "kill", "watch-lost", "crash:notifier", "é"])
FAULTS = st.builds("{}:{}".format, KINDS, NUMBERS)
PLANS = st.builds(
    Plan,
    st.integers(),
    operations=st.none() | st.frozensets(NUMBERS),
    faults=st.none() | st.frozensets(FAULTS),
    deviations=st.none() | st.frozensets(NUMBERS),
)


@given(PLANS)
def test_every_plan_is_read_back_from_its_text(plan: Plan) -> None:
    assert parse_only(plan.seed, only_text(plan)) == plan


@given(PLANS)
def test_every_plan_is_read_back_from_its_command_after_the_shell_has_split_it(plan: Plan) -> None:
    words = shlex.split(replay_command(plan, ["--calm"]))
    assert words[:4] == ["scripts/simulate", "--seed", str(plan.seed), "--calm"]
    only = dict([words[4:]]) if words[4:] else {}
    assert parse_only(plan.seed, only.get("--only", "")) == plan


def test_stretches_of_numbers_are_ranges_and_nothing_is_not_everything() -> None:
    plan = Plan(
        7,
        operations=frozenset([9, 1, 2, 3, 5, 4]),
        faults=frozenset(["kill:0", "conflict:10", "conflict:9", "conflict:3"]),
        deviations=frozenset(),
    )
    assert only_text(plan) == "o=1-5,9 f=conflict:3,conflict:9-10,kill:0 d="
    assert only_text(Plan(7)) == ""
    assert only_text(Plan(7, deviations=frozenset([120, *range(130, 141)]))) == "d=120,130-140"
    assert parse_only(7, "o=") == Plan(7, operations=frozenset())
    assert replay_command(Plan(7)) == "scripts/simulate --seed 7"
    assert replay_command(plan) == ("scripts/simulate --seed 7 --only 'o=1-5,9 f=conflict:3,conflict:9-10,kill:0 d='")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("x=1", "'x=1'"),
        ("o", "'o'"),
        ("1-5", "'1-5'"),
        ("o=1 o=2", "o= occurs twice"),
        ("o=a", "'a'"),
        ("o=-3", "'-3'"),
        ("o=1,", "''"),
        ("o=1--3", "'1--3'"),
        ("d=1:2", "'1:2'"),
        ("f=conflict", "'conflict'"),
        ("f=:3", "':3'"),
        ("f=conflict:", "''"),
        ("f=conflict:x", "'x'"),
    ],
)
def test_a_text_that_is_none_is_refused_with_the_part_that_is_wrong(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong)):
        parse_only(7, text)
