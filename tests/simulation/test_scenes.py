"""Scenes: some runs are made of them, each plays by itself, and what it complains of fails its run."""

from __future__ import annotations

import pytest

from jobs_service.testing import Choices, Plan
from tests.simulation import character, scenes
from tests.simulation.run import simulate
from tests.simulation.scenes import SCENES, Scene, has_scenes

SHARE = range(10, 60)
"""Of a thousand runs, how many may be made of scenes."""


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Have every run be one of scenes."""
    monkeypatch.setattr(character, "has_scenes", lambda choices: True)
    return monkeypatch


def test_a_few_runs_are_made_of_scenes() -> None:
    assert len([seed for seed in range(1000) if has_scenes(Choices(Plan(seed)))]) in SHARE


def test_scenes_have_names_of_their_own() -> None:
    assert len({kind.name for kind in SCENES}) == len(SCENES)


@pytest.mark.parametrize("kind", SCENES, ids=lambda kind: kind.name)
def test_a_scene_plays_by_itself_in_any_order_of_events(kind: type[Scene], only: pytest.MonkeyPatch) -> None:
    only.setattr(scenes, "SCENES", (kind,))
    only.setattr(scenes, "_EMBEDDED", float(kind.embedded))
    for seed in range(4):
        report = simulate(Plan(seed))
        assert report.violations == []
        assert [event for event in report.events if event.endswith(f"a scene of {kind.name}")]


def test_what_a_scene_complains_of_fails_its_run(only: pytest.MonkeyPatch) -> None:
    class Waiting(Scene):
        name = "waiting"

        async def play(self) -> None:
            assert await self.until(lambda: True, 1.0, "it was so from the beginning")
            assert not await self.until(lambda: False, 3.0, "it was so at last")

    only.setattr(scenes, "SCENES", (Waiting,))
    only.setattr(scenes, "_EMBEDDED", 0.0)
    assert simulate(Plan(0)).violations == ["scene of waiting: it was so at last; that took more than 3.00 s"]


def test_whose_weather_is_chosen_or_who_names_workloads_gets_no_scenes(only: pytest.MonkeyPatch) -> None:
    for chosen in ({"profile": "calm"}, {"workloads": ["creators"]}):
        assert not [event for event in simulate(Plan(0), **chosen).events if "a scene of" in event]
