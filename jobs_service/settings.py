"""All settings with their defaults, units and ranges; their values come from arguments, environment or a TOML file."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from jobs_service import durations
from jobs_service.errors import InvalidSettings, in_one_line, shown
from jobs_service.log import EventLog

PREFIX = "JOBS_SERVICE_"
FILE_VARIABLE = PREFIX + "SETTINGS"
STORE_VARIABLE = PREFIX + "STORE"
OUTBOX_VARIABLE = PREFIX + "OUTBOX"

_LONGEST = 300
_MOST_NAMED = 10
_HANDLERS = "handlers"
# Variables of the tests, and those that Kubernetes sets for a service of this name.
_OF_OTHERS = tuple(PREFIX + name for name in ("TEST_", "SERVICE_HOST", "SERVICE_PORT", "PORT"))
_logged: set[str] = set()

log = EventLog("jobs_service")


def _duration(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("float_type", "no duration")
    # A number as text stays, so that a complaint shows it as it was written.
    is_taken = isinstance(value, str) and value.replace(".", "").isdigit() and not (info.config or {}).get("strict")
    return value if is_taken else durations.plain(value)


Seconds = Annotated[float, BeforeValidator(_duration)]
"""A duration, also as a timedelta or a text such as 10m."""


class HandlerSettings(BaseModel):
    """A handler's options that the configuration may set; None leaves an option as it was registered."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    slots: int | None = Field(default=None, ge=0, le=100_000)
    """Jobs that one process runs at the same time."""
    max_churn: int | None = Field(default=None, ge=0, le=100_000)
    """Continuous jobs that one rotation stops at most."""
    interval: Seconds | None = Field(default=None, gt=0, le=86_400)
    """Seconds between two rotations."""
    max_history: int | None = Field(default=None, ge=1, le=100)
    """Events that a job's history keeps."""


class Settings(BaseSettings):
    """The service's settings; durations in seconds, as a timedelta, or as a text such as "10m".

    Each comes from, in this order: an argument, the environment variable JOBS_SERVICE_<NAME>, the TOML file that
    JOBS_SERVICE_SETTINGS names, the default.

    Raises:
        InvalidSettings: a value is outside its range, or the file cannot be read; the message says which.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", allow_inf_nan=False)

    type_check_period: Seconds = Field(15.0, gt=0, le=86_400)
    """Time between two searches for types that have running jobs but are not marked as awake. Up to a third more is
    added at random, so that many processes do not search at the same moment."""
    activity_samples: int = Field(8, ge=4, le=1000)
    """Samples of a type's activity per activity timeout."""
    notify_holdoff: Seconds = Field(0.05, ge=0, le=3600)
    """Least time between two reads of changes, per subscribed type."""
    activity_batch: int = Field(1000, ge=1, le=100_000)
    """Most lost jobs that one transaction re-enqueues."""
    transaction_timeout: Seconds = Field(10.0, gt=0, le=3600)
    """Longest time for one transaction, retries included; then StoreUnavailable is raised."""
    max_restarts: int = Field(3, ge=0, le=1000)
    """Restarts of the supervisor tree's children that are allowed within `restart_period`."""
    restart_period: Seconds = Field(10.0, gt=0, le=86_400)
    """See `max_restarts`."""
    durable: bool = True
    """Embedded store: an answered write survives a power cut. False: a power cut may undo the newest writes."""
    lmdb_map_size: int = Field(64 << 30, ge=1 << 16, le=1 << 46)
    """Embedded store: its size in bytes at which adds are refused; only address space is reserved. Calls that end or
    remove jobs may use a sixteenth more, and at least 64 MiB."""
    watch_poll: Seconds = Field(0.008, gt=0, le=10)
    """Embedded store: time between two checks for commits of other processes, while there are watches; three times
    as long when nothing has been committed for a second."""
    process_check_period: Seconds = Field(0.25, ge=0, le=60)
    """Embedded store: time between two checks for dead processes; their jobs then become pending. 0: this process
    does not check, and if it dies, its jobs wait for their type's timeout."""
    process_heartbeat: Seconds = Field(15.0, ge=0, le=3600)
    """Time between two heartbeats of a process that runs handlers or is a daemon; they show others that it is alive. 0:
    this process is not listed, and cannot be asked to stop."""
    fdb_library: str | None = None
    """FoundationDB: path of the client library, libfdb_c; by default where its packages install it."""
    fdb_directory: str = "jobs_service"
    """FoundationDB: path of the jobs' directory, `a/b`; one cluster can hold several. An address can name
    another one."""
    fdb_tag: str = Field("", max_length=16, pattern="^[ -~]*$")
    """FoundationDB: tag of all transactions, by which an operator can see and throttle them; empty for none."""
    handlers: Annotated[dict[str, HandlerSettings], NoDecode] = Field(default_factory=dict)
    """Options of handlers by type, for `JobsService.run` and `reload`: `[handlers.thumbnail]` in the file, JSON in the
    variable. A type that is not a str is named by its repr: `[handlers.7]`."""

    # What follows is the same for everybody. Only tests and the simulation give a process other values, by
    # `model_copy(update=...)`: there a few jobs have to make several batches, and seconds have to be enough.

    add_batch: ClassVar[int] = 1000
    """Jobs that add_many writes per transaction at most: beyond, a transaction gains nothing by being larger."""
    pending_batch: ClassVar[int] = 100
    """Due jobs made ready, or expired ones removed, per transaction: those who wait for one do not wait for long."""
    notifier_batch: ClassVar[int] = 1000
    """Jobs that a notifier reads per transaction; what they have in bytes sets a smaller bound."""
    type_idle_after: ClassVar[float] = 10.0
    """Seconds without activity after which a type counts as idle, if none of its jobs runs, or comes due or expires
    soon. Idle types take neither memory nor time; a type that is used every few seconds does not come and go."""
    expiry_check_period: ClassVar[float] = 60.0
    """Seconds between two searches for expired jobs of a type: whoever keeps jobs does so for longer than that."""
    retry_backoff: ClassVar[float] = 0.05
    """First pause, in seconds, of an actor after a temporary store error; it doubles up to `retry_backoff_max`."""
    retry_backoff_max: ClassVar[float] = 2.0
    """Longest such pause: so long after its return a store is in use again."""
    fdb_max_watches: ClassVar[int] = 10_000
    """FoundationDB: watches that the client holds, as many as it allows unless told otherwise."""
    fdb_watch_poll: ClassVar[float] = 0.25
    """FoundationDB: seconds between two reads of the keys that are watched beyond that number."""

    def __init__(self, **values: Any) -> None:
        for name, value in values.items():
            if name not in Settings.model_fields:
                raise InvalidSettings(f"{_called((name,), value)}: there is no such setting{_range_of((name,))}")
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise InvalidSettings(_first_complaint(error, values)) from None
        except ValueError as error:
            raise InvalidSettings(in_one_line(str(error), _LONGEST)) from None
        except Exception as error:  # raised by the __float__ or __int__ of an object that was given
            raise InvalidSettings(f"a setting that cannot be read: {in_one_line(str(error), _LONGEST)}") from None

    @field_validator("handlers", mode="before")
    @classmethod
    def _from_variable(cls, value: Any) -> Any:
        """Parse the environment variable, which is JSON text; the file's table is parsed already."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            raise PydanticCustomError("json", "it is no JSON object") from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments first, then the environment, then the TOML file."""
        return init_settings, env_settings, _TomlFile(settings_cls)


class _TomlFile(PydanticBaseSettingsSource):
    """The file that JOBS_SERVICE_SETTINGS names, if any."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Unused: the whole file is one mapping."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        name = os.environ.get(FILE_VARIABLE)
        if not name:
            return {}
        file = f"{FILE_VARIABLE}={in_one_line(name, 150)}"
        try:
            return tomllib.loads(Path(name).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidSettings(f"{file}: cannot read it: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise InvalidSettings(f"{file}: not TOML: {in_one_line(str(error), 100)}") from None


def log_unknown_variables() -> None:
    """Log environment variables that look like settings but are none, once per process. They are no error: other
    programs may share the prefix.
    """
    # pydantic-settings ignores the case of variables, so this does, too.
    unknown = {name for name in os.environ if name.upper().startswith(PREFIX)} - _logged
    if not unknown:
        return
    known = [FILE_VARIABLE, STORE_VARIABLE, OUTBOX_VARIABLE, *(PREFIX + name.upper() for name in Settings.model_fields)]
    unknown = {name for name in unknown if name.upper() not in known and not name.upper().startswith(_OF_OTHERS)}
    _logged.update(unknown)
    if unknown:
        log.warning("unknown_variables", variables=[_with_nearest(name, known) for name in sorted(unknown)])


def _with_nearest(name: str, known: list[str]) -> str:
    [nearest] = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.0)
    return f"{in_one_line(name, 60)} is no setting; the nearest is {nearest}"


def _first_complaint(error: ValidationError, arguments: dict[str, Any]) -> str:
    first = error.errors(include_url=False)[0]
    place = tuple(str(part) for part in first["loc"]) or ("settings",)
    allowed = in_one_line(first["msg"][0].lower() + first["msg"][1:], 100)
    if first["type"].startswith("float_"):
        allowed = f"a duration is wanted, such as {durations.ALLOWED}"
    return f"{_called(place, first.get('input'))}: {allowed}{_range_of(place)}{_where(place[0], arguments)}"


def _where(setting: str, arguments: dict[str, Any]) -> str:
    """Return the end of a message that names the settings file, if the value comes from there."""
    file = os.environ.get(FILE_VARIABLE)
    variable = PREFIX + setting.upper()
    if not file or setting in arguments or any(name.upper() == variable for name in os.environ):
        return ""
    return f"; it stands in {in_one_line(file, 150)}"


def _called(place: tuple[str, ...], value: Any) -> str:
    if len(place) > 1:
        return f"setting {in_one_line('.'.join(place), 60)}={shown(value, 40)}"
    short = in_one_line(place[0], 40)
    return f"{PREFIX}{short.upper()}={shown(value, 40)} (setting {short})"


def _range_of(place: tuple[str, ...]) -> str:
    if place[0] == _HANDLERS and len(place) < 3:
        return f"; allowed are tables by type, with {', '.join(HandlerSettings.model_fields)}"
    fields = (HandlerSettings if len(place) > 1 else Settings).model_fields
    field = fields.get(place[-1])
    if field is None:
        names = sorted(fields)
        if len(names) > _MOST_NAMED:
            names = difflib.get_close_matches(place[-1].lower(), names) or [*names[:_MOST_NAMED], "..."]
        return f"; known are {', '.join(names)}"
    if field.annotation is bool:
        return "; allowed are true and false"
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    bounds = [
        f"{sign} {getattr(bound, attribute)}"
        for bound in field.metadata
        for attribute, sign in signs.items()
        if hasattr(bound, attribute)
    ]
    return f"; allowed is {' and '.join(bounds)}" if bounds else ""
