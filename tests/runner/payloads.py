"""Classes of arguments that handlers may have, for the tests of payloads."""

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import strategies as st

from jobs_service.errors import InvalidJob
from jobs_service.runner.payload import codec


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float


@dataclass
class Shape:
    name: str
    at: Point
    made: datetime
    price: Decimal
    color: Color
    corners: list[Point] = field(default_factory=list)
    label: str | None = None
    by_number: dict[int, Point] = field(default_factory=dict)
    tags: frozenset[str] = frozenset()
    span: tuple[int, str] = (0, "")
    took: timedelta = timedelta()
    key: UUID | None = None


@dataclass(frozen=True, slots=True)
class Checked:
    count: int
    extra: Any = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count must not be negative")
        if self.count == 13:
            raise KeyError("thirteen")


class Movie(TypedDict):
    title: str
    year: NotRequired[int]
    seen: NotRequired[list[datetime]]


class Shelf(TypedDict):
    movies: list[Movie]
    best: Movie | None


class Model(pydantic.BaseModel):
    name: str
    size: int = pydantic.Field(alias="theSize", ge=0, default=1)
    read: int = pydantic.Field(validation_alias="onlyRead", default=1)
    written: int = pydantic.Field(serialization_alias="onlyWritten", default=1)
    point: Point | None = None

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return 2 * self.size


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shouted(self) -> str:
        return self.name.upper()


class Plain(msgspec.Struct):
    url: str
    width: int
    made: datetime | None = None
    price: Decimal | None = None
    color: Color = Color.RED
    parts: list["Plain"] = []


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    name: str


@dataclass
class Tree:
    value: int
    below: list["Tree"] = field(default_factory=list)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def refusal(annotation: Any, data: Any) -> str:
    """Return what is said of data that do not fit, checked to be one line."""
    with pytest.raises(InvalidJob) as caught:
        codec(annotation).decode(data)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message
