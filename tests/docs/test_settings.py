"""The page of settings: every setting, with its default and its range as the code has them."""

from __future__ import annotations

import tomllib
from typing import Any

import annotated_types
import pytest
from pydantic.fields import FieldInfo

from jobs_service.settings import HandlerSettings, Settings
from tests.docs.pages import examples, read, rows

TABLE = {row[0].strip("`"): row[1:3] for row in rows(read("docs/settings.md"), "setting")}
FILE = examples("docs/settings.md", "toml")[0]


def test_every_setting_is_in_the_table() -> None:
    assert set(TABLE) == set(Settings.model_fields)


@pytest.mark.parametrize("name", Settings.model_fields)
def test_the_default_and_the_range_are_those_of_the_code(name: str) -> None:
    field = Settings.model_fields[name]
    assert TABLE[name] == [default_of(field), range_of(field)]


def default_of(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value in (None, "", {}):
        return "none"
    return (
        str(value).lower() if isinstance(value, bool) else f"{value:.15g}" if isinstance(value, float) else str(value)
    )


def range_of(field: FieldInfo) -> str:
    bounds: dict[type, Any] = {type(each): each for each in field.metadata}
    if annotated_types.MaxLen in bounds:
        return f"up to {bounds[annotated_types.MaxLen].max_length} characters"
    low = bounds.get(annotated_types.Ge)
    high = bounds.get(annotated_types.Le)
    if annotated_types.Lt in bounds:
        return f"above {bounds[annotated_types.Gt].gt}, below {bounds[annotated_types.Lt].lt}"
    if high is None:
        return ""
    return f"{low.ge} to {high.le}" if low else f"above {bounds[annotated_types.Gt].gt}, up to {high.le}"


def test_the_file_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "settings.toml").write_text(FILE)
    monkeypatch.setenv("JOBS_SERVICE_SETTINGS", str(tmp_path / "settings.toml"))
    settings = Settings()
    assert settings.watch_poll == tomllib.loads(FILE)["watch_poll"]
    assert settings.handlers["thumbnail"].slots == 4


def test_the_variable_of_handlers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, value = read("docs/settings.md").partition("JOBS_SERVICE_HANDLERS='")
    monkeypatch.setenv("JOBS_SERVICE_HANDLERS", value.partition("'")[0])
    assert Settings().handlers["thumbnail"].slots == 4


def test_the_page_names_the_options_that_settings_may_have() -> None:
    rest = read("docs/settings.md").partition("Allowed are ")[2].partition(".")[0]
    assert set(rest.replace("\n", " ").replace("and", ",").replace(" ", "").replace("`", "").split(",")) - {""} == set(
        HandlerSettings.model_fields
    )
