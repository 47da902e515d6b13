"""What a tool takes: read once from its signature, checked for every ask, shown as JSON schema.

The check is msgspec's strict conversion. A text is no number and a bool no int; an int passes for a float,
a list for a tuple or set, a text in ISO form for a date or UUID. Parameters without an annotation take
any value that travels.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from sandbox_exec.errors import ToolsetError

# `ask(self, tool, **args)`: a child cannot give these by keyword.
_TAKEN: Final = frozenset({"self", "tool"})
_PLAIN: Final = (type(None), bool, int, float, str)


class Invalid(Exception):
    """A child's arguments do not fit. The text names the one, and goes to the child."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What one tool takes.

    Attributes:
        struct: the record that arguments are converted to.
        schema: the same as JSON schema, or what was given to be shown instead.
        required: names that must be there, and
        optional: names that may.
    """

    struct: type[msgspec.Struct]
    schema: Mapping[str, object]
    required: tuple[str, ...]
    optional: tuple[str, ...]

    def checked(self, args: Mapping[str, object]) -> dict[str, object]:
        """The arguments as the function's annotations want them; absent ones are left to its defaults.

        Raises:
            Invalid: an argument is unknown, missing, or of another type.
        """
        known = (*self.required, *self.optional)
        for name in args:
            if name not in known:
                near = difflib.get_close_matches(name[:100], known, 1)
                hint = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known) or 'none'}."
                msg = f"there is no argument {name[:100]!r}. {hint}"
                raise Invalid(msg)
        for name in self.required:
            if name not in args:
                msg = f"argument {name!r} is missing"
                raise Invalid(msg)
        try:
            found = msgspec.convert(args, self.struct)
        except Exception as error:  # also what a type of the host's own raises as it is made
            what, _, place = str(error).partition(" - at `$.")
            msg = f"argument {place.removesuffix('`')!r}: {what}" if place else what
            raise Invalid(msg) from error
        values = {name: getattr(found, name) for name in self.struct.__struct_fields__}
        return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def arguments_of(what: str, call: Callable[..., object], given: object = None) -> Arguments:
    """Reads what a function takes.

    Args:
        what: the tool, for error texts.
        call: the function.
        given: None: its annotations say all. A dict: shown as the JSON schema, while its annotations are
            checked. A msgspec Struct: checked and shown instead of the annotations.

    Raises:
        ToolsetError: it cannot be called with the arguments of an ask.
    """
    parameters = _parameters(what, call)
    if isinstance(given, type) and issubclass(given, msgspec.Struct):
        return _of_struct(what, parameters, given)
    fields: list[tuple[str, object] | tuple[str, object, object]] = []
    for parameter in parameters:
        kind = Any if parameter.annotation in (parameter.empty, object) else parameter.annotation
        try:
            _schema(msgspec.defstruct("probe", [("value", kind)]))
        except (TypeError, ValueError) as error:
            msg = f"{what}: parameter {parameter.name!r} has a type that cannot be checked: {error}"
            raise ToolsetError(msg) from error
        # Defaults stay the function's business: a mutable one is not shared, nor is it checked.
        late = () if parameter.default is parameter.empty else (msgspec.field(default=msgspec.UNSET),)
        fields.append((parameter.name, kind, *late))
    struct = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True, kw_only=True)
    required = tuple(p.name for p in parameters if p.default is p.empty)
    optional = tuple(p.name for p in parameters if p.default is not p.empty)
    if given is None:
        schema = _schema(struct)
        properties: Any = schema["properties"]
        for parameter in parameters:
            if type(parameter.default) in _PLAIN:
                properties[parameter.name]["default"] = parameter.default
        return Arguments(struct, schema, required, optional)
    if isinstance(given, dict):
        return Arguments(struct, _copied(what, given), required, optional)
    msg = f"{what}: schema must be a dict of JSON schema or a msgspec Struct class, not {given!r:.100}"
    raise ToolsetError(msg)


def _parameters(what: str, call: Callable[..., object]) -> list[inspect.Parameter]:
    try:
        parameters = list(inspect.signature(call, eval_str=True).parameters.values())
    except (NameError, AttributeError, SyntaxError) as error:
        msg = f"{what}: an annotation cannot be resolved: {error}. Make its name global in the module."
        raise ToolsetError(msg) from error
    except (TypeError, ValueError) as error:
        msg = f"{what}: {call!r} has no signature to read: {error}"
        raise ToolsetError(msg) from error
    for parameter in parameters:
        if parameter.kind not in {parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD}:
            msg = (
                f"{what}: parameter {str(parameter)!r} is {parameter.kind.description}, and an ask gives "
                "its arguments by name: name every parameter"
            )
            raise ToolsetError(msg)
        if parameter.name in _TAKEN:
            msg = f"{what}: a child cannot give a parameter called {parameter.name!r}: call it otherwise"
            raise ToolsetError(msg)
    return parameters


def _of_struct(what: str, parameters: list[inspect.Parameter], struct: type[msgspec.Struct]) -> Arguments:
    try:
        fields = msgspec.structs.fields(struct)
        schema = _schema(struct)
    except (TypeError, ValueError, NameError) as error:
        msg = f"{what}: schema {struct.__name__} cannot be checked: {error}"
        raise ToolsetError(msg) from error
    names, takes = {field.name for field in fields}, {parameter.name for parameter in parameters}
    always = {field.name for field in fields if field.default is not msgspec.UNSET}
    needs = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    if wrong := sorted(names - takes) + sorted(needs - always):
        msg = f"{what}: the function and the schema {struct.__name__} differ in {', '.join(wrong)}"
        raise ToolsetError(msg)
    required = tuple(field.encode_name for field in fields if field.required)
    optional = tuple(field.encode_name for field in fields if not field.required)
    return Arguments(struct, schema, required, optional)


def _schema(struct: type[msgspec.Struct]) -> dict[str, object]:
    """The JSON schema, with the record itself at the top."""
    (top,), parts = msgspec.json.schema_components([struct], schema_hook=_schema_of)
    own: dict[str, object] = parts.pop(top["$ref"].rpartition("/")[2])
    own["additionalProperties"] = False  # whatever a given Struct says of itself
    own.pop("title", None)
    return own | ({"$defs": parts} if parts else {})


def _schema_of(kind: type) -> dict[str, object]:
    """What msgspec has no schema for and yet can check: an instance of the very class."""
    if kind is object:
        return {"description": "any value"}  # an empty one counts as none
    if kind is Path:
        return {"type": "string", "format": "path"}
    msg = f"a {getattr(kind, '__qualname__', kind)} cannot come from a child"
    raise TypeError(msg)


def _copied(what: str, schema: dict[object, object]) -> dict[str, object]:
    """A copy that later changes do not reach, and proof that it is JSON."""
    try:
        return msgspec.json.decode(msgspec.json.encode(schema), type=dict[str, object])
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"{what}: schema cannot be written as JSON: {error}"
        raise ToolsetError(msg) from error
