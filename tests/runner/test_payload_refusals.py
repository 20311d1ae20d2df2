"""Arguments that do not fit, and annotations that no handler can have: the errors name the field."""

import enum
import subprocess
import sys
import typing
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
import typing_extensions
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs_service import json_data
from jobs_service.errors import InvalidJob, InvalidSettings, JobTooLarge
from jobs_service.runner.payload import Codec, codec
from tests.runner.payloads import (
    JSON,
    Cat,
    Checked,
    Color,
    Dog,
    Model,
    Movie,
    Plain,
    Point,
    Shape,
    Shelf,
    Strict,
    Tree,
    refusal,
)


class Folder(TypedDict):
    name: str
    folders: "list[Folder]"
    owner: NotRequired["Owner"]


class Owner(TypedDict, total=False):
    home: Folder


Nested = typing.Union[str, "list[Nested]"]


class Brittle(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n == 13:
            raise KeyError("thirteen")


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


class NeedsArguments:
    def __init__(self, a: int) -> None:
        self.a = a


@dataclass
class Lost:
    where: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class LostStruct(msgspec.Struct):
    where: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


# annotations


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


def test_msgspec_is_not_imported_for_those_who_do_not_use_it() -> None:
    program = (
        "import sys; from jobs_service.runner.payload import codec; codec(int); sys.exit('msgspec' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


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
