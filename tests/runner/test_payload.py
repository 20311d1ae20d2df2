"""Payloads: what goes through JSON and comes back equal, and what is said when something does not fit."""

import enum
import subprocess
import sys
import typing
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings, JobsError, JobTooLarge
from jobs_service.runner.payload import Codec, codec, name_of


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


class Folder(TypedDict):
    name: str
    folders: "list[Folder]"
    owner: NotRequired["Owner"]


class Owner(TypedDict, total=False):
    home: Folder


Nested = typing.Union[str, "list[Nested]"]


class ExtensionsMovie(typing_extensions.TypedDict):
    title: str
    year: typing_extensions.NotRequired[int]


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


class Brittle(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n == 13:
            raise KeyError("thirteen")


@dataclass
class Tree:
    value: int
    below: list["Tree"] = field(default_factory=list)


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
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted(
    {"name", "at", "x", "y", "title", "movies", "url", "width", "type", "lives", "count", "n", "parts", "made"}
)
NEAR = st.recursive(
    JSON | st.sampled_from(["3", "2026-01-01T00:00:00Z", "red", "Cat", "Dog", "\ud800", 13, 2**70, 1e300, ""]),
    lambda inner: st.dictionaries(st.sampled_from(FIELDS), inner, max_size=6) | st.lists(inner, max_size=3),
    max_leaves=10,
)
ANNOTATIONS: list[Any] = [
    Any,
    dict,
    list,
    str,
    int,
    bool,
    float,
    None,
    dict[str, int],
    Point | None,
    Shape,
    Checked,
    Movie,
    Shelf,
    Model,
    Strict,
    Plain,
    Cat | Dog,
    list[Plain],
    Brittle,
    Tree,
    Annotated[int, pydantic.Field(gt=3)],
    Literal["Cat", 13],
]


def refusal(annotation: Any, data: Any) -> str:
    """Return what is said of data that do not fit, checked to be one line."""
    with pytest.raises(InvalidJob) as caught:
        codec(annotation).decode(data)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def through(annotation: Any, args: Any) -> Any:
    """Return what arrives at a handler: by way of the bytes that the store keeps."""
    return arrived(codec(annotation), args)


def arrived(there: Codec, args: Any) -> Any:
    """The same by a codec that is there."""
    return there.decode(json_data.decode(json_data.encode(there.encode(args))))


# round trips


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


def test_a_typed_dict_may_forbid_unknown_fields() -> None:
    class Closed(TypedDict):
        __pydantic_config__ = pydantic.ConfigDict(extra="forbid")  # type: ignore[misc]
        title: str

    assert "field year is unknown" in refusal(Closed, {"title": "M", "year": 1})


def test_a_typed_dict_of_typing_extensions_comes_back_equal() -> None:
    assert through(ExtensionsMovie, {"title": "M"}) == {"title": "M"}


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


def test_tagged_structs_come_back_as_what_they_were() -> None:
    for animal in (Cat(9), Dog("Rex")):
        assert through(Cat | Dog, animal) == animal
        assert through(list[Cat | Dog] | None, [animal]) == [animal]


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


# what does not fit


@pytest.mark.parametrize(
    ("annotation", "data", "said"),
    [
        (int, "3", "the data does not fit int: input should be a valid integer; it is '3'"),
        (int, 3.0, "does not fit int: input should be a valid integer; it is 3.0"),
        (int, True, "input should be a valid integer; it is True"),
        (bool, 1, "input should be a valid boolean; it is 1"),
        (str, 3, "the data should be a str; it is 3"),
        (dict, None, "the data should be a dict; it is None"),
        (dict[str, Any], [], "the data should be a dict; it is []"),
        (list, {}, "the data should be a list; it is {}"),
        (Point, {"x": "3", "y": 1}, "does not fit Point: field x: input should be a valid integer; it is '3'"),
        (Point, {"x": 3}, "does not fit Point: field y is missing"),
        (Point, {}, "field x is missing (and 1 more)"),
        (Point, None, "does not fit Point: input should be an object; it is None"),
        (list[Tree], [{"value": 1, "below": [{"value": 2}, {}]}], "field [0].below[1].value is missing"),
        (Shelf, {"movies": [{"title": 1}]}, "field movies[0].title: input should be a valid string; it is 1 (and"),
        (Strict, {"name": "a", "b": 1}, "field b is unknown"),
        (Model, {"name": "a", "theSize": -1}, "field theSize: input should be greater than or equal to 0; it is -1"),
        (Checked, {"count": -1}, "does not fit Checked: count must not be negative; it is"),
        (Checked, {"count": 13}, "does not fit Checked: KeyError: 'thirteen'"),
        (Color, "green", "input should be 'red' or 'blue'; it is 'green'"),
        (Plain, {"url": "", "width": "3"}, "does not fit Plain: field width: expected `int`, got `str`"),
        (Plain, {"url": ""}, "does not fit Plain: field width is missing"),
        (Plain, {"url": "", "width": 1, "parts": [{"url": ""}]}, "field parts[0].width is missing"),
        (Plain, [], "does not fit Plain: expected `object`, got `array`"),
        (Cat | Dog, {"type": "Cow"}, "field type: invalid value 'Cow'"),
        (Cat | Dog, {"type": "Dog", "name": "Rex", "age": 3}, "field age is unknown"),
        (Brittle, {"n": 13}, "does not fit Brittle: KeyError: 'thirteen'"),
    ],
)  # fmt: skip
def test_a_payload_that_does_not_fit_is_told_by_its_field(annotation: Any, data: Any, said: str) -> None:
    assert said in refusal(annotation, data)


def test_text_that_is_not_unicode_is_refused_where_it_is_checked() -> None:
    for annotation in (Point, Plain):
        assert "surrogates not allowed" in refusal(annotation, {"x": "\ud800"})


@pytest.mark.parametrize("annotation", [Point, Movie, Model, Plain, Cat])
def test_unknown_fields_are_ignored_so_that_producers_can_be_upgraded_first(annotation: Any) -> None:
    known = {"x": 1, "y": 1, "title": "", "name": "", "url": "", "width": 1, "type": "Cat", "lives": 1}
    wanted = {key: known[key] for key in known if key in annotation.__annotations__ or key == "type"}
    there = codec(annotation)
    assert there.decode(wanted | {"later": [1]}) == there.decode(wanted)


@settings(max_examples=100)
@given(NEAR)
def test_whatever_json_there_is_it_is_decoded_or_an_invalid_job(data: Any) -> None:
    for there in CODECS:
        args = decoded(there, data)
        # Whatever was decoded can be handed on.
        assert args is REFUSED or there.decode(there.encode(args)) == args


def decoded(there: Codec, data: Any) -> Any:
    """Return what a codec makes of data, or REFUSED with an error that was checked to be short and on one line."""
    try:
        return there.decode(data)
    except InvalidJob as error:
        message = str(error)
    assert len(message.splitlines()) == 1
    assert len(message) < 500
    return REFUSED


@dataclass
class Files:
    """What holds bytes."""

    content: dict[str, list[bytes]]


REFUSED = object()
CODECS = [codec(annotation) for annotation in ANNOTATIONS]


@pytest.mark.parametrize(
    ("annotation", "args", "said"),
    [
        (Point, Point("3", 1.0), "expected `int`; it is '3'"),  # type: ignore[arg-type]
        (Point, 3, "does not fit Point: expected `Point`; it is 3"),
        (Shape, {"name": "a"}, "does not fit Shape: expected `Shape`"),
        (Annotated[int, pydantic.Field(gt=3)], 3, "input should be greater than 3; it is 3"),
        (Plain, Plain("", "3"), "does not fit Plain: field width: expected `int`, got `str`"),  # type: ignore[arg-type]
        (Plain, object(), "does not fit Plain: TypeError: Encoding objects of type object is unsupported"),
        (Point, Point(1, float("nan")), "data is not JSON: the number nan"),
        (Plain, Plain("", float("nan")), "data is not JSON: the number nan"),  # type: ignore[arg-type]
        (Point, Point(10**5000, 1.0), "data is not JSON: an integer of"),
        (bytes, b"\xff", "does not fit bytes: the bytes are no UTF-8 text, which JSON needs; write them in base64"),
        (Files, Files({"a": [b"ok", b"\xff"]}), "does not fit Files: field content.a[1]: the bytes are no UTF-8 text"),
        (Checked, Checked(1, object()), "does not fit Checked: PydanticSerializationError: Unable to serialize"),
        (Movie, {}, "does not fit Movie: "),
        (dict, [], "the data should be a dict; it is []"),
    ],
)  # fmt: skip
def test_arguments_that_no_handler_could_be_given_are_refused_to_the_producer(
    annotation: Any, args: Any, said: str
) -> None:
    with pytest.raises(InvalidJob) as caught:
        json_data.encode(codec(annotation).encode(args))
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.unmeasured
@given(st.floats(), st.text())
def test_what_a_codec_has_encoded_is_json(number: float, text: str) -> None:
    for annotation, args in ((Checked, Checked(1, [number, text])), (Plain, Plain(text, 1)), (Model, text)):
        try:
            data = codec(annotation).encode(args)
            encoded = json_data.encode(data)
        except JobsError:
            continue
        assert json_data.decode(encoded) == data


# annotations


class NeedsArguments:
    def __init__(self, a: int) -> None:
        self.a = a


@dataclass
class Lost:
    where: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class LostStruct(msgspec.Struct):
    where: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("annotation", [NeedsArguments, 3, Lost, LostStruct, None | NeedsArguments])
def test_an_annotation_that_no_codec_takes_is_refused_in_one_line(annotation: Any) -> None:
    with pytest.raises(InvalidSettings, match=r" is nothing that a job's data can be: .*; allowed are datac") as caught:
        codec(annotation)
    assert len(str(caught.value).splitlines()) == 1


def test_forward_references_are_looked_up_in_the_names_that_are_given() -> None:
    @dataclass
    class Inner:
        n: int

    @dataclass
    class Outer:
        inners: "list[Inner]"

    there = codec(Outer, {"Inner": Inner})
    assert there.decode({"inners": [{"n": 1}]}) == Outer([Inner(1)])


def test_a_class_is_called_by_its_own_name_in_messages() -> None:
    class Local:
        pass

    assert [name_of(annotation) for annotation in (Local, int, list[int], Any)] == [
        "Local",
        "int",
        "list[int]",
        "Any",
    ]


def test_msgspec_is_not_imported_for_those_who_do_not_use_it() -> None:
    program = (
        "import sys; from jobs_service.runner.payload import codec; codec(int); sys.exit('msgspec' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_typed_dict_may_hold_itself() -> None:
    folders = codec(Folder)
    inner: Folder = {"name": "inner", "folders": [], "owner": {}}
    outer: Folder = {"name": "outer", "folders": [inner], "owner": {"home": inner}}
    assert folders.decode(folders.encode(outer)) == outer
    with pytest.raises(InvalidJob, match=r"does not fit Folder: field owner\.home\.folders\[0\]\.name is missing"):
        folders.decode({**outer, "owner": {"home": {"name": "home", "folders": [{"folders": []}]}}})


def test_an_alias_that_holds_itself_is_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidSettings, match=r"alias that holds itself, as 'list\[Nested\]' in it: .*TypeAliasType"):
        codec(dict[str, Nested])
    nested: Any = typing_extensions.TypeAliasType("nested", "str | list[nested]")
    assert codec(nested, {"nested": nested}).decode(["a", ["b"]]) == ["a", ["b"]]


class Size(enum.IntEnum):
    SMALL = 1


class Word(enum.StrEnum):
    YES = "yes"


@pytest.mark.parametrize(
    ("annotation", "args", "decoded"),
    [
        (dict, OrderedDict(a=Word.YES, b=Size.SMALL), {"a": "yes", "b": 1}),
        (dict[str, int], OrderedDict(a=Size.SMALL), {"a": 1}),
        (dict[str, int], defaultdict(int, a=1), {"a": 1}),
        (dict[str, str], {Word.YES: Word.YES}, {"yes": "yes"}),
        (str, Word.YES, "yes"),
        (str | None, Word.YES, "yes"),
        (int, Size.SMALL, 1),
    ],
)
def test_subclasses_of_json_types_come_back_as_plain_values(annotation: Any, args: Any, decoded: Any) -> None:
    made = codec(annotation)
    data = json_data.decode(json_data.encode(made.encode(args)))
    back = made.decode(data)
    assert back == decoded
    assert repr(back) == repr(decoded)


def test_many_values_in_a_subclass_of_dict_are_too_many() -> None:
    part: Any = [0] * 1000
    with pytest.raises(JobTooLarge):
        codec(dict[str, Any] | None).encode(OrderedDict((str(number), part) for number in range(10_000)))
