"""What is enqueued comes back equal, or is refused: no field is dropped, masked or made something else in silence."""

from __future__ import annotations

import enum
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from jobs_service import InvalidJob, json_data
from jobs_service.runner.payload import codec


class Color(enum.StrEnum):
    RED = "red"


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Revealing(pydantic.BaseModel):
    password: pydantic.SecretStr

    @pydantic.field_serializer("password")
    def reveal(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


class Order(pydantic.BaseModel):
    number: int
    note: str = pydantic.Field("none", exclude=True)


class Animal(pydantic.BaseModel):
    name: str


class Dog(Animal):
    tricks: int = 0


class Kennel(pydantic.BaseModel):
    animals: list[Animal]


@dataclass
class Vehicle:
    wheels: int


@dataclass
class Truck(Vehicle):
    load: int = 0


@dataclass
class Garage:
    first: Vehicle


class Base(msgspec.Struct):
    n: int


class Derived(Base):
    more: int = 0


class Holder(msgspec.Struct):
    base: Base


@dataclass
class Loose:
    extra: Any = None
    tags: set[str] = field(default_factory=set)
    derived: int = field(init=False, default=0)


@dataclass(eq=False)
class Silent:
    x: int
    inner: Any = None


@dataclass
class Cached:
    x: int
    cache: Any = field(default=None, compare=False)


class Doubled(pydantic.BaseModel):
    x: int

    @pydantic.field_validator("x")
    @classmethod
    def twice(cls, x: int) -> int:
        return 2 * x


def derived(value: int) -> Loose:
    """Return an object with a field that its class does not let anybody give."""
    loose = Loose()
    loose.derived = value
    return loose


def arrived(annotation: Any, args: Any) -> Any:
    """Return what the handler is given."""
    there = codec(annotation)
    return there.decode(json_data.decode(json_data.encode(there.encode(args))))


@pytest.mark.parametrize(
    ("annotation", "args", "said"),
    [
        (Login, Login(user="a", password=pydantic.SecretStr("b")), "field password: a SecretStr would not come back"),
        (list[Login], [Login(user="a", password=pydantic.SecretStr("b"))], "field [0].password: a SecretStr would"),
        (Order, Order(number=1, note="urgent"), "field note: 'urgent' would come back as 'none'"),
        (Kennel, Kennel(animals=[Animal(name="a"), Dog(name="b")]), "field animals[1]: a Dog would come back as an An"),
        (Animal, Dog(name="b"), "a Dog would come back as an Animal"),
        (Garage, Garage(Truck(4, 7)), "field first: a Truck would come back as a Vehicle"),
        (Holder, Holder(Derived(1, 2)), "field base: a Derived would come back as a Base"),
        (Doubled, Doubled(x=2), "field x: 4 would come back as 8"),
        (Loose, Loose(float("nan")), "field extra: a float would come back as a NoneType"),
        (Loose, Loose({1: 2}), "field extra.1 would be lost"),
        (Loose, derived(3), "would come back as"),
    ],
    ids=str,
)  # fmt: skip
def test_what_would_not_come_back_equal_is_refused_in_one_line_that_names_the_field(
    annotation: Any, args: Any, said: str
) -> None:
    with pytest.raises(InvalidJob, match=re.escape(said)) as caught:
        codec(annotation).encode(args)
    assert str(caught.value).startswith("the data does not fit ")
    assert len(str(caught.value).splitlines()) == 1
    assert "'b'" not in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "args"),
    [
        (Revealing, Revealing(password=pydantic.SecretStr("b"))),
        (Order, Order(number=1, note="none")),
        (Kennel | None, Kennel(animals=[Animal(name="a")])),
        (list[Dog | Animal], [Dog(name="a", tricks=3)]),
        (Loose, Loose([1, {"a": None}])),
        (Loose, Loose(Color.RED)),
        (Loose, Loose(OrderedDict(a=1))),
        (Cached, Cached(1)),
    ],
    ids=str,
)
def test_what_comes_back_equal_is_taken(annotation: Any, args: Any) -> None:
    assert arrived(annotation, args) == args


@pytest.mark.parametrize("fold", [0, 1])
def test_times_are_taken_in_the_hour_that_a_clock_shows_twice(fold: int) -> None:
    at = datetime(2025, 10, 26, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
    assert at != at.astimezone(UTC)  # so Python says
    assert arrived(list[datetime], [at])[0].utcoffset() == at.utcoffset()


def test_objects_that_do_not_say_when_they_are_equal_are_compared_by_their_fields() -> None:
    back = arrived(Silent, Silent(1, [2]))
    assert (back.x, back.inner) == (1, [2])
    with pytest.raises(InvalidJob, match="field inner: a float would come back as a NoneType"):
        codec(Silent).encode(Silent(1, float("inf")))


def test_sets_are_stored_in_an_order_of_their_own() -> None:
    names = [f"tag {number}" for number in range(40)]
    stored = [codec(Loose).encode(Loose({}, set(each)))["tags"] for each in (names, names[::-1])]
    assert stored == [sorted(names), sorted(names)]
    nested = codec(dict[str, list[frozenset[int]]]).encode({"a": [frozenset({3, 1, 2, 2**40})]})
    assert nested == {"a": [[1, 1099511627776, 2, 3]]}
