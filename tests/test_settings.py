"""The settings: where they come from, which of two wins, and what a mistake is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobs_service import InvalidSettings, JobsError, JobsService, Settings
from jobs_service.runner.options import ChangeableOptions, HandlerOptions
from jobs_service.settings import FILE_VARIABLE, PREFIX, HandlerSettings

NUMBERS = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin every test without a setting in the environment."""
    monkeypatch.delenv(FILE_VARIABLE, raising=False)
    for name in Settings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | bytes], Path]:
    """Writes the TOML file that the environment names."""

    def write(content: str | bytes) -> Path:
        path = tmp_path / "settings.toml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        monkeypatch.setenv(FILE_VARIABLE, str(path))
        return path

    return write


def complaint(**arguments: Any) -> str:
    """Return what is wrong with settings, checked to be one line."""
    with pytest.raises(InvalidSettings) as caught:
        Settings(**arguments)
    assert isinstance(caught.value, JobsError)
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def bounds(name: str) -> dict[str, float]:
    """Return a setting's bounds as they were declared."""
    signs = ("gt", "ge", "lt", "le")
    return {
        sign: getattr(bound, sign)
        for bound in Settings.model_fields[name].metadata
        for sign in signs
        if hasattr(bound, sign)
    }


# sources


@pytest.mark.parametrize("name", NUMBERS)
def test_every_setting_comes_from_its_variable(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = getattr(Settings(), name)
    monkeypatch.setenv(f"JOBS_SERVICE_{name.upper()}", str(value + 1))
    assert getattr(Settings(), name) == value + 1


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_a_switch_comes_from_its_variable(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SERVICE_DURABLE", text)
    assert Settings().durable is value


def test_a_toml_file_sets_what_it_names(file: Callable[[str], Path]) -> None:
    file("activity_batch = 7\nnotify_holdoff = 0.5 # seconds\ndurable = false\n")
    assert Settings() == Settings.model_construct(
        **{**Settings().model_dump(), "activity_batch": 7, "notify_holdoff": 0.5, "durable": False}
    )
    assert (Settings().activity_batch, Settings().notify_holdoff, Settings().durable) == (7, 0.5, False)
    assert Settings().activity_samples == 8


def test_arguments_win_over_the_environment_and_that_over_the_file(
    file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file("activity_batch = 1\nmax_restarts = 1\nactivity_samples = 5\n")
    monkeypatch.setenv("JOBS_SERVICE_ACTIVITY_BATCH", "2")
    monkeypatch.setenv("JOBS_SERVICE_MAX_RESTARTS", "2")
    settings = Settings(activity_batch=3)
    assert (settings.activity_batch, settings.max_restarts, settings.activity_samples) == (3, 2, 5)
    assert settings.restart_period == 10


# mistakes


@pytest.mark.parametrize("name", NUMBERS)
def test_a_value_below_the_range_is_told_variable_value_and_range(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = bounds(name)
    low = allowed["gt"] if "gt" in allowed else allowed["ge"] - 1
    sign = f"> {allowed['gt']}" if "gt" in allowed else f">= {allowed['ge']}"
    monkeypatch.setenv(f"JOBS_SERVICE_{name.upper()}", str(low))
    message = complaint()
    assert message.startswith(f"JOBS_SERVICE_{name.upper()}={str(low)!r} (setting {name}): ")
    assert f"allowed is {sign} and <" in message


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["", "many", "1x", "a\nb"])
def test_what_is_no_number_is_told_variable_value_and_range(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"JOBS_SERVICE_{name.upper()}", value)
    message = complaint()
    wrong = f"JOBS_SERVICE_{name.upper()}={value!r} (setting {name}): "
    assert message.startswith((f"{wrong}input should be a valid ", f"{wrong}a duration is wanted, such as 90, '30s', "))
    assert "; allowed is >" in message


def test_an_unknown_setting_is_told_which_there_are() -> None:
    message = complaint(activity_bach=1)
    assert message.startswith("JOBS_SERVICE_ACTIVITY_BACH=1 (setting activity_bach): ")
    assert message.endswith("; known are activity_batch, activity_samples")
    message = complaint(zzz=1)
    assert message.endswith(", ...")
    assert set(message.partition("; known are ")[2].split(", ")[:-1]) <= set(Settings.model_fields)


@pytest.mark.parametrize("content", ["activity_batch 1", "activity_batch = ", "= 1", "a = 1\na = 2", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_told_by_name(content: str | bytes, file: Callable[[str | bytes], Path]) -> None:
    path = file(content)
    assert complaint().startswith(f"JOBS_SERVICE_SETTINGS={path}: not TOML: ")


# options of handlers


def test_options_of_handlers_come_from_tables_of_the_file(file: Callable[[str], Path]) -> None:
    file('[handlers.thumbnail]\nslots = 4\ninterval = 5\n[handlers."a.b"]\nmax_churn = 0\nmax_history = 1\n')
    assert {type: options.model_dump(exclude_none=True) for type, options in Settings().handlers.items()} == {
        "thumbnail": {"slots": 4, "interval": 5.0},
        "a.b": {"max_churn": 0, "max_history": 1},
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[handlers.a]\nslots = -1",
            "setting handlers.a.slots=-1: input should be greater than or equal to 0; allowed is >= 0 and <= 100000",
        ),
        (
            "[handlers.a]\nslots = true",
            "setting handlers.a.slots=True: input should be a valid integer; allowed is >= 0 and <= 100000",
        ),
        (
            "[handlers.a]\ninterval = '5x'",
            "setting handlers.a.interval='5x': a duration is wanted, such as 90, '30s', '10m', '1h30m', '2d' or a "
            "timedelta; allowed is > 0 and <= 86400",
        ),
        (
            "[handlers.a]\ninterval = inf",
            "setting handlers.a.interval=inf: input should be a finite number; allowed is > 0 and <= 86400",
        ),
        (
            "[handlers.a]\ngrace = 1",
            "setting handlers.a.grace=1: extra inputs are not permitted; known are interval, max_churn, max_history, "
            "slots",
        ),
        (
            "[handlers]\nslots = 4",
            "setting handlers.slots=4: input should be a valid dictionary or instance of HandlerSettings; allowed are "
            "tables by type, with slots, max_churn, interval, max_history",
        ),
        (
            'handlers = "many"',
            "JOBS_SERVICE_HANDLERS='many' (setting handlers): it is no JSON object; allowed are tables by type, with "
            "slots, max_churn, interval, max_history",
        ),
        (
            'handlers = "[1]"',
            "JOBS_SERVICE_HANDLERS=[1] (setting handlers): input should be a valid dictionary; allowed are tables by "
            "type, with slots, max_churn, interval, max_history",
        ),
    ],
)
def test_a_mistake_in_a_handlers_options_is_told(content: str, message: str, file: Callable[[str], Path]) -> None:
    path = file(content)
    assert complaint() == f"{message}; it stands in {path}"


@pytest.mark.parametrize("name", HandlerSettings.model_fields)
def test_a_handlers_options_have_the_ranges_that_they_have_in_code(name: str) -> None:
    signs = {"gt": 0.001, "ge": 0, "le": 0}
    assert set(HandlerSettings.model_fields) == set(ChangeableOptions.__annotations__)
    for bound in HandlerSettings.model_fields[name].metadata:
        for sign, beyond in signs.items():
            if not hasattr(bound, sign):
                continue
            limit = getattr(bound, sign)
            within, outside = limit + beyond, limit + (1 if sign == "le" else 0 if sign == "gt" else -1)
            assert Settings(handlers={"a": {name: within}}).handlers["a"].model_dump()[name] == within
            assert getattr(HandlerOptions().with_changes(**{name: within}), name) == within
            complaint(handlers={"a": {name: outside}})
            with pytest.raises(InvalidSettings):
                HandlerOptions().with_changes(**{name: outside})


async def test_a_misspelt_variable_is_named_once_with_the_nearest_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBS_SERVICE_ACTIVITY_BACH", "5")
    monkeypatch.setenv("JOBS_SERVICE_STROE", "lmdb:here")
    for others in ("TEST_WHATEVER", "SERVICE_HOST", "PORT_80_TCP", "ACTIVITY_BATCH"):
        monkeypatch.setenv(PREFIX + others, "5")
    with capture_logs() as logs:
        for _ in range(2):
            async with JobsService("memory:", supervise=False):
                pass
    [event] = [event for event in logs if event["log_level"] == "warning"]
    assert (event["event"], event["variables"]) == (
        "unknown_variables",
        [
            "JOBS_SERVICE_ACTIVITY_BACH is no setting; the nearest is JOBS_SERVICE_ACTIVITY_BATCH",
            "JOBS_SERVICE_STROE is no setting; the nearest is JOBS_SERVICE_STORE",
        ],
    )
