"""Payloads: what goes through JSON and comes back equal, and what is said when something does not fit."""

import typing
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Annotated, Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_service import json_data
from jobs_service.errors import InvalidJob
from jobs_service.runner.payload import Codec, codec
from tests.runner.payloads import JSON, Checked, Color, Model, Movie, Plain, Point, Shape, Shelf, Strict, Tree, refusal

POINTS = st.builds(Point, x=st.integers(-(2**80), 2**80), y=st.floats(allow_nan=False, allow_infinity=False))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.datetimes(datetime(1900, 1, 2), datetime(9000, 1, 1), timezones=OFFSETS | st.just(UTC))
PRICES = st.decimals(allow_nan=False, allow_infinity=False)
SHAPES = st.builds(
    Shape,
    name=TEXT,
    at=POINTS,
    made=TIMES,
    price=PRICES,
    color=st.sampled_from(Color),
    corners=st.lists(POINTS, max_size=3),
    label=st.none() | TEXT,
    by_number=st.dictionaries(st.integers(), POINTS, max_size=2),
    tags=st.frozensets(TEXT, max_size=2),
    span=st.tuples(st.integers(), TEXT),
    took=st.timedeltas(timedelta(days=-900), timedelta(days=900)),
    key=st.uuids(),
)
MOVIES = st.fixed_dictionaries({"title": TEXT}, optional={"year": st.integers(), "seen": st.lists(TIMES, max_size=2)})
STRUCTS = st.builds(
    Plain,
    url=TEXT,
    width=st.integers(),
    made=st.none() | TIMES,
    price=st.none() | PRICES.filter(lambda price: len(str(price)) < 20),
    color=st.sampled_from(Color),
    parts=st.just([]) | st.lists(st.builds(Plain, url=TEXT, width=st.integers()), max_size=2),
)


def through(annotation: Any, args: Any) -> Any:
    """Return what arrives at a handler: by way of the bytes that the store keeps."""
    return arrived(codec(annotation), args)


def arrived(there: Codec, args: Any) -> Any:
    """The same by a codec that is there."""
    return there.decode(json_data.decode(json_data.encode(there.encode(args))))


@pytest.mark.unmeasured
@given(SHAPES)
def test_a_dataclass_comes_back_equal(shape: Shape) -> None:
    arrived = through(Shape, shape)
    assert arrived == shape
    assert type(arrived.at) is Point
    assert through(list[Shape], [shape, shape]) == [shape, shape]


@pytest.mark.unmeasured
@given(MOVIES)
def test_a_typed_dict_comes_back_equal(movie: dict[str, Any]) -> None:
    assert through(Movie, movie) == movie
    assert through(Shelf, {"movies": [movie], "best": None}) == {"movies": [movie], "best": None}


@pytest.mark.parametrize(
    ("annotation", "wrap"),
    [
        (list[Movie], lambda movie: [movie]),
        (dict[str, Movie | None], lambda movie: {"a": movie, "b": None}),
        (typing.Optional[Movie], lambda movie: movie),  # noqa: UP045
        (Annotated[Movie, "with", "notes"], lambda movie: movie),
        (Sequence[Movie], lambda movie: [movie, movie]),
        (tuple[Movie, ...], lambda movie: (movie,)),
        (Movie | Literal["none"], lambda movie: movie),
    ],
)
def test_a_typed_dict_inside_of_other_types_is_checked_as_well(annotation: Any, wrap: Callable[[Any], Any]) -> None:
    movie = {"title": "M", "year": 1931}
    assert through(annotation, wrap(movie)) == wrap(movie)
    wrong = json_data.decode(json_data.encode(wrap({"title": 3})))
    assert "title" in refusal(annotation, wrong)


@given(TEXT, st.integers(0), st.integers(), st.integers(), st.none() | POINTS)
def test_a_pydantic_model_comes_back_equal_whatever_its_aliases(
    name: str, size: int, read: int, written: int, point: Point | None
) -> None:
    given = {"name": name, "theSize": size, "onlyRead": read, "written": written, "point": point}
    model = Model.model_validate(given)
    assert through(Model, model) == model


@given(STRUCTS)
def test_a_struct_comes_back_equal(struct: Plain) -> None:
    assert through(Plain, struct) == struct
    assert through(list[Plain], [struct]) == [struct]


@pytest.mark.unmeasured
@given(JSON)
def test_any_takes_every_json_value(value: Any) -> None:
    try:
        json_data.encode(value)
    except InvalidJob:  # two surrogates that make one character
        return
    assert through(Any, value) == value
    assert through(object, value) == value
    if isinstance(value, dict | list | str):
        assert through(type(value), value) == value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**70),
        (bool, False),
        (float, 0.5),
        (None, None),
        (dict[str, int], {"a": 1}),
        (dict[int, date], {1: date(2026, 1, 2)}),
        (Literal["a", 1], 1),
        (int | str, "3"),
        (Color, Color.BLUE),
        (Annotated[int, pydantic.Field(gt=3)], 4),
        (Tree, Tree(1, [Tree(2), Tree(3, [Tree(4)])])),
        (tuple[int, ...], (1, 2)),
        (bytes, b"text"),
        (Checked, Checked(3, [1, {"a": None}])),
        (Strict, Strict(name="a")),
    ],
    ids=str,
)
def test_other_values_come_back_equal(annotation: Any, value: Any) -> None:
    arrived = through(annotation, value)
    assert arrived == value
    assert type(arrived) is type(value)


def test_an_integer_is_accepted_for_a_float_and_becomes_one() -> None:
    arrived = codec(Point).decode({"x": 1, "y": 2})
    assert type(arrived.y) is float
    assert through(Point, Point(1, 2)) == Point(1, 2.0)
