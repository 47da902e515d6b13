"""The registry: names, bundles, signatures, and what a launch may hold."""

import asyncio
import dataclasses
import datetime as dt
import functools
import pathlib
import threading
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sandbox_exec as sx
from sandbox_exec.toolsets.arguments import Invalid, arguments_of
from sandbox_exec.toolsets.registry import BUILT_IN, Allowance

NAMES = ["alpha", "beta", "gamma", *BUILT_IN]


@pytest.fixture
def registry():
    return sx.ToolsetRegistry()


def add_note(text: str, tag: str = "") -> str:
    """Keeps a note.

    For ever.
    """
    return text + tag


def filled(bundles=()):
    registry = sx.ToolsetRegistry()
    for name in NAMES[:3]:
        registry.tool(name, name=f"{name}_tool")(add_note)
    for number, members in enumerate(bundles):
        known = [*NAMES, *(f"bundle{earlier}" for earlier in range(number))]
        registry.bundle(f"bundle{number}", [known[member % len(known)] for member in members])
    return registry


registries = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=6).map(filled)


@st.composite
def registry_and_names(draw, lists=1):
    registry = draw(registries)
    pick = st.lists(st.sampled_from(registry.names()), max_size=6)
    return registry, *(draw(pick) for _ in range(lists))


@given(registry_and_names())
def test_an_expansion_is_its_own_expansion_and_the_union_of_its_parts(drawn):
    registry, names = drawn
    expanded = registry.expand(names)
    assert registry.expand(expanded) == expanded
    assert len(set(expanded)) == len(expanded)
    assert set(expanded) == {part for name in names for part in registry.expand([name])}
    assert set(expanded) <= set(NAMES)
    assert registry.tools(names) == registry.tools(expanded)


@given(registry_and_names(lists=2))
def test_a_grant_is_what_was_asked_and_within_what_is_held_or_refused(drawn):
    registry, most, asked = drawn
    allowance = Allowance(registry, most)
    held, wanted = set(registry.expand(most)), set(registry.expand(asked))
    assert set(allowance.grant(None).toolsets) == held
    if wanted <= held:
        grant = allowance.grant(asked)
        assert set(grant.toolsets) == wanted
        assert set(grant.tools) == {f"{name}_tool" for name in wanted - set(BUILT_IN)}
    else:
        with pytest.raises(sx.ToolsetError, match="would broaden") as refused:
            allowance.grant(asked)
        named = str(refused.value).partition(" would broaden")[0].removeprefix("toolsets ").split(", ")
        assert set(named) == wanted - held


def test_without_a_list_a_child_holds_nothing_unless_its_launch_names_it():
    allowance = Allowance(filled(), None)
    assert allowance.grant(None).toolsets == ()
    assert allowance.grant(["alpha"]).toolsets == ("alpha",)
    assert Allowance(filled(), ()).grant(None).toolsets == ()
    with pytest.raises(sx.ToolsetError, match=r"alpha would broaden .* hold: nothing"):
        Allowance(filled(), ()).grant(["alpha"])


def test_what_is_registered_later_reaches_later_grants_alone():
    registry = filled()
    allowance = Allowance(registry, ["alpha"])
    before = allowance.grant(None)
    registry.tool("alpha")(add_note)
    assert set(before.tools) == {"alpha_tool"}
    assert set(allowance.grant(None).tools) == {"alpha_tool", "add_note"}


def test_the_built_in_toolsets_are_there_and_grant_no_host_tool(registry):
    assert registry.names() == ("code", "file", "terminal", "web")
    assert registry.tools() == {}
    assert Allowance(registry, ["web", "file"]).grant(None).built_in == ("web", "file")


def test_a_decorated_function_is_itself_and_its_tool_is_data(registry):
    assert registry.tool("notes", timeout_seconds=5)(add_note) is add_note
    tool = registry.tools(["notes"])["add_note"]
    assert (tool.name, tool.toolset, tool.timeout_seconds) == ("add_note", "notes", 5)
    assert tool.description == "Keeps a note."
    assert tool.schema == {
        "type": "object",
        "properties": {"text": {"type": "string"}, "tag": {"type": "string", "default": ""}},
        "required": ["text"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["note"], "no toolset 'note'. Did you mean 'notes'"),
        (["zzz"], "no toolset 'zzz'. There are: code, desk, file, notes"),
        (["Notes"], "no toolset 'Notes'"),
        (["notes", 3], "a str, not 3"),
        ("notes", r"not 'notes': write \['notes'\]"),
        (3, "a list of names, not 3"),
    ],
)
def test_names_that_are_none_are_refused(registry, names, words):
    registry.tool("notes")(add_note)
    registry.bundle("desk", ["file", "notes"])
    for use in (registry.expand, registry.tools, lambda names: registry.bundle("other", names)):
        with pytest.raises(sx.ToolsetError, match=words):
            use(names)
    with pytest.raises(sx.ToolsetError, match=words):
        sx.SandboxExecutor(registry=registry, toolsets=names)
    with sx.SandboxExecutor(registry=registry) as executor:
        with pytest.raises(sx.ToolsetError, match=words):
            executor.launch(print, toolsets=names)
        assert executor.statistics()["started"] == 0


@pytest.mark.parametrize("name", ["", "a b", "1st", "-x", "n\u043etes", "a" * 65, "a\n", "a/b", None, 7])
def test_names_are_plain(registry, name):
    with pytest.raises(sx.ToolsetError, match="is no name for a toolset"):
        registry.tool(name)
    with pytest.raises(sx.ToolsetError, match="is no name for a bundle"):
        registry.bundle(name, [])
    if name is not None:
        with pytest.raises(sx.ToolsetError, match=r"is no name for a tool: .* Give name="):
            registry.tool("notes", name=name)(add_note)
    assert registry.names() == ("code", "file", "terminal", "web")


def test_no_name_means_two_things(registry):
    registry.tool("notes")(add_note)
    registry.bundle("desk", ["notes"])
    for toolset in ("notes", "others"):
        with pytest.raises(sx.ToolsetError, match="'add_note' is there already, in toolset 'notes'"):
            registry.tool(toolset)(add_note)
    with pytest.raises(sx.ToolsetError, match="'desk' is a bundle"):
        registry.tool("desk", name="other")(add_note)
    for name, kind in (("desk", "bundle"), ("notes", "toolset"), ("file", "toolset")):
        with pytest.raises(sx.ToolsetError, match=f"{name!r} is a {kind} already"):
            registry.bundle(name, ["web"])
    assert "others" not in registry.names()


def test_no_bundle_contains_itself(registry):
    with pytest.raises(sx.ToolsetError, match="'loop' would contain itself"):
        registry.bundle("loop", ["file", "loop"])
    registry.bundle("inner", ["file"])
    registry.bundle("outer", ["inner"])
    for members in (["outer"], ["inner"]):
        with pytest.raises(sx.ToolsetError):
            registry.bundle("inner", members)
    assert registry.expand(["outer"]) == ("file",)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "5", None])
def test_a_deadline_is_a_positive_number(registry, seconds):
    with pytest.raises(sx.ToolsetError, match="timeout_seconds"):
        registry.tool("notes", timeout_seconds=seconds)


async def coroutine(x: int): ...
async def asynchronous_generator():
    yield


def generator():
    yield


def positional(x, /): ...
def variable(*x): ...
def keywords(**x): ...
def called_tool(tool): ...
def forward(x: "Nowhere"): ...  # noqa: F821
def lock(x: threading.Event): ...
def unsure(x: str | bytes): ...


class Asynchronous:
    async def __call__(self): ...


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (coroutine, "is async"),
        (functools.partial(coroutine, x=1), "is async"),
        (Asynchronous(), "is async"),
        (asynchronous_generator, "is async"),
        (generator, "is a generator"),
        (positional, "'x' is positional-only"),
        (variable, r"'\*x' is variadic positional"),
        (keywords, r"'\*\*x' is variadic keyword"),
        (called_tool, "a parameter called 'tool'"),
        (forward, "'Nowhere' is not defined"),
        (lock, "parameter 'x' has a type that cannot be checked: a Event"),
        (unsure, "parameter 'x' has a type that cannot be checked"),
        (len, "positional-only"),
        (type, "no signature|positional|variadic"),
        (5, "must be a function"),
    ],
)
def test_what_an_ask_could_not_call_is_refused_by_name(registry, function, words):
    with pytest.raises(sx.ToolsetError, match=words):
        registry.tool("notes", name="odd")(function)
    assert registry.tools() == {}


def test_a_lambda_needs_a_name(registry):
    with pytest.raises(sx.ToolsetError, match="'<lambda>' is no name for a tool"):
        registry.tool("notes")(lambda: 1)
    registry.tool("notes", name="one")(lambda: 1)
    assert registry.tools(["notes"])["one"].call() == 1


class Store:
    def add(self, text: str, *, at: dt.date | None = None):
        return text, at


def test_methods_and_partials_are_functions_too(registry):
    registry.tool("notes")(Store().add)
    registry.tool("notes", name="fixed")(functools.partial(Store().add, at=None))
    tools = registry.tools(["notes"])
    assert set(tools["add"].schema["properties"]) == {"text", "at"}
    assert tools["fixed"].checked({"text": "x"}) == {"text": "x"}


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


def many(
    a: int,
    b: Annotated[float, msgspec.Meta(ge=0)],
    c: Literal["r", "w"] = "r",
    d: Point | None = None,
    e: pathlib.Path | None = None,
    f=(),
    g: object = None,
    h: list[int] = [],  # noqa: B006
    i: bytes = b"",
): ...


ENOUGH = {"a": 1, "b": 2.0}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 2.0}),
        ({"a": 1 << 200, "b": 0.0}, {"a": 1 << 200, "b": 0.0}),
        (ENOUGH | {"d": {"x": 1}}, ENOUGH | {"d": Point(1, 0)}),
        (ENOUGH | {"d": None}, ENOUGH | {"d": None}),
        (ENOUGH | {"e": pathlib.Path("/x")}, ENOUGH | {"e": pathlib.Path("/x")}),
        (ENOUGH | {"f": ({1}, b"x"), "g": (2,)}, ENOUGH | {"f": ({1}, b"x"), "g": (2,)}),
        (ENOUGH | {"h": (1, 2), "i": b"\0"}, ENOUGH | {"h": [1, 2], "i": b"\0"}),
    ],
)
def test_arguments_that_fit_arrive_as_annotated(args, expected):
    assert arguments_of("many", many).checked(args) == expected


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({}, "argument 'a' is missing"),
        ({"a": 1}, "argument 'b' is missing"),
        ({"a": "1", "b": 2.0}, "argument 'a': Expected `int`, got `str`"),
        ({"a": True, "b": 2.0}, "argument 'a': Expected `int`, got `bool`"),
        ({"a": 1, "b": -1.0}, "argument 'b': Expected `float` >= 0"),
        (ENOUGH | {"c": "x"}, "argument 'c': Invalid enum value 'x'"),
        (ENOUGH | {"d": {"x": "1"}}, "argument 'd.x': Expected `int`"),
        (ENOUGH | {"d": {"\ud800": 1}}, "surrogates not allowed"),
        (ENOUGH | {"e": "/x"}, "argument 'e': Expected `.*Path.*`, got `str`"),
        (ENOUGH | {"h": [1, None]}, r"argument 'h\[1\]': Expected `int`, got `null`"),
        (ENOUGH | {"aa": 1}, "no argument 'aa'. Did you mean 'a'"),
        (ENOUGH | {"\ud800" * 5_000: 1}, r"no argument '(\\ud800)+'. There are: a, b"),
    ],
)
def test_arguments_that_do_not_fit_are_named(args, words):
    with pytest.raises(Invalid, match=words) as refused:
        arguments_of("many", many).checked(args)
    assert len(str(refused.value)) < 1_500


def test_defaults_are_the_functions_own():
    assert arguments_of("many", many).checked(ENOUGH) == ENOUGH
    schema = arguments_of("many", many).schema
    assert schema["properties"]["c"]["default"] == "r"
    assert "default" not in schema["properties"]["h"]
    assert set(schema["$defs"]) == {"Point"}
    assert schema["properties"]["g"] == {"default": None}


class Given(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(max_length=3)]
    tag: str = "given"


class Renamed(msgspec.Struct, rename="camel"):
    text: str
    tag: str = ""


class Wrong(msgspec.Struct):
    other: str


def test_a_schema_may_be_given():
    shown = {"type": "object", "properties": {"text": {"type": "string", "title": "T"}}}
    arguments = arguments_of("add_note", add_note, shown)
    assert arguments.schema == shown
    shown["properties"] = None
    assert arguments.schema["properties"]["text"] == {"type": "string", "title": "T"}
    with pytest.raises(Invalid, match="argument 'text'"):
        arguments.checked({"text": 1})

    arguments = arguments_of("add_note", add_note, Given)
    assert arguments.checked({"text": "abc"}) == {"text": "abc", "tag": "given"}
    for args, words in (({"text": "abcd"}, "length <= 3"), ({"text": "", "x": 1}, "no argument 'x'")):
        with pytest.raises(Invalid, match=words):
            arguments.checked(args)
    assert arguments_of("add_note", add_note, Renamed).checked({"text": "x"}) == {"text": "x", "tag": ""}

    for schema, words in (
        (Wrong, "differ in other, text"),
        (5, "must be a dict of JSON schema or a msgspec Struct"),
        ({"x": object()}, "cannot be written as JSON"),
    ):
        with pytest.raises(sx.ToolsetError, match=words):
            arguments_of("add_note", add_note, schema)


def test_registering_and_expanding_from_many_threads_loses_nothing(registry):
    def register(worker):
        for number in range(50):
            registry.tool(f"set{number}", name=f"tool_{worker}_{number}")(add_note)
            registry.expand(registry.names())

    threads = [threading.Thread(target=register, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.tools()) == 400


def test_an_async_tool_is_wrapped_by_hand(registry):
    async def double(x):
        return 2 * x

    @registry.tool("numbers")
    def twice(x: int) -> int:
        return asyncio.run(double(x))

    assert registry.tools()["twice"].call(**registry.tools()["twice"].checked({"x": 2})) == 4


def test_a_registry_is_a_registry():
    with pytest.raises(sx.ToolsetError, match="must be a ToolsetRegistry"):
        sx.SandboxExecutor(registry={"notes": add_note})
