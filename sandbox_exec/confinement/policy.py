"""A resolved profile, and how two of them meet: what both allow, never more."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Final

from sandbox_exec.confinement.limits import Limits
from sandbox_exec.errors import ProfileError

SCHEMA: Final = 1
STARTS: Final = ("exec", "zygote")
# Every layer and property that a profile may name, and whether it comes in versions.
LAYERS: Final = {
    "abstract_isolated": False,
    "cgroup": False,
    "ipcns": False,
    "landlock": True,
    "mdwe": False,
    "mountns": False,
    "netns": False,
    "no_new_privs": False,
    "pidfd": False,
    "pidns": False,
    "seccomp": False,
    "signals_isolated": False,
    "single_thread": False,
    "userns": False,
    "utsns": False,
}
# What this version applies where the host has it; what of them it could not apply, the child says itself.
APPLIED: Final = frozenset({"pidns", "cgroup"})
_LAYER: Final = re.compile(r"([a-z_]+)(?:>=([1-9][0-9]{0,3}))?")


@dataclass(frozen=True, slots=True)
class Profile:
    """One resolved profile. Two are equal when their name and their content are.

    Attributes:
        name: the file's name.
        start: "exec" (a fresh interpreter for every child), which nothing can loosen, or "zygote".
        limits: what a launch may only tighten.
        environment: names of the host's variables that a child gets.
        require: kernel layers without which no child is launched.
        prefer: kernel layers whose absence a child's `degraded` names.
        description: one line for people.
        source: the file that it was read from; empty if none.
    """

    name: str
    start: str = "exec"
    limits: Limits = field(default_factory=Limits)
    environment: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    description: str = field(default="", compare=False)
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        try:
            if type(self.name) is not str or not self.name:
                raise ValueError(f"a name is a non-empty text, not {self.name!r}")
            check_start(self.start)
            if not isinstance(self.limits, Limits):
                raise TypeError(f"limits must be Limits(...), not {self.limits!r:.200}")
            environment, require = check_variables(self.environment), check_layers(self.require)
            prefer = beyond(check_layers(self.prefer), require)
            if not all(type(names) is tuple for names in (self.environment, self.require, self.prefer)):
                raise TypeError("environment, require and prefer must be tuples: a profile does not change")
        except (TypeError, ValueError) as error:
            raise ProfileError(f"profile {self.name!r}: {error}") from error
        for attribute, value in (("environment", environment), ("require", require), ("prefer", prefer)):
            object.__setattr__(self, attribute, value)  # each once, and what is required is not preferred too

    def intersected(self, other: Profile) -> Profile:
        """What both allow, under this one's name.

        The tighter of every two limits; the variables that both pass; the layers that either requires or
        prefers; a fresh interpreter if either wants one.
        """
        return replace(
            self,
            start="exec" if "exec" in {self.start, other.start} else self.start,
            limits=self.limits.intersected(other.limits),
            environment=tuple(name for name in self.environment if name in other.environment),
            require=united(self.require, other.require),
            prefer=united(self.prefer, other.prefer),
        )

    def narrow(
        self,
        *,
        limits: Limits | None = None,
        env_pass: Iterable[str] | None = None,
        require: Iterable[str] = (),
    ) -> Profile:
        """A narrower profile of the same name.

        Args:
            limits: tighter ones; None in a field leaves it.
            env_pass: the variables that are still passed on; None leaves them.
            require: further layers.

        Raises:
            ConfigError: a limit would be wider.
            ProfileError: a variable that this profile does not pass on, or no such layer.
        """
        try:
            # A single text is a mistake, not its letters; so it stays what it is and is refused.
            added = require if isinstance(require, str) else tuple(require)
            passed = self.environment
            if env_pass is not None:
                passed = check_variables(env_pass if isinstance(env_pass, str) else tuple(env_pass))
            check_layers(added)
        except (TypeError, ValueError) as error:
            raise ProfileError(f"cannot narrow profile {self.name!r}: {error}") from error
        if more := [name for name in passed if name not in self.environment]:
            raise ProfileError(
                f"cannot narrow profile {self.name!r}: it does not pass {', '.join(more)} on, and "
                f"more would widen it. It passes: {', '.join(self.environment) or 'nothing'}."
            )
        return replace(
            self,
            limits=self.limits if limits is None else self.limits.tightened(limits),
            environment=tuple(name for name in self.environment if name in passed),
            require=united(self.require, tuple(added)),
        )

    def resolved(self) -> dict[str, object]:
        """The content as plain data: times in seconds, sizes in bytes, None for no bound."""
        limits: dict[str, float | int | None] = {}
        for item in fields(Limits):
            value = getattr(self.limits, item.name)
            if value is not None and item.name.endswith("_seconds"):
                value = float(value) + 0.0  # one form of 5 and 5.0, of 0.0 and -0.0
            limits[item.name] = value
        return {
            "schema": SCHEMA,
            "start": self.start,
            "limits": limits,
            "env": {"pass": sorted(self.environment)},
            "layers": {
                "require": sorted(self.require),
                "prefer": sorted(self.prefer),
            },
        }

    @property
    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal: the same for the same policy, whatever its name or file."""
        canonical = json.dumps(self.resolved(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()

    def explain(self, toolsets: Iterable[str] = ()) -> str:
        """What a child under this profile gets and does not get, in words.

        Args:
            toolsets: also say what each of these would open.

        Raises:
            ToolsetError: `toolsets` holds something else than names.
        """
        from sandbox_exec.confinement.words import explained  # it knows profiles

        return explained(self, toolsets)


def refusal(profile: Profile) -> str | None:
    """Why this version launches nothing under a profile; None if it does."""
    if not profile.require:
        return None
    return (
        f"profile {profile.name!r} asks for kernel layers ({', '.join(profile.require)}), and this version "
        "has none. Use profile 'none' for code that you trust, and nothing for code that you do not."
    )


def check_start(start: object) -> str:
    """A way to start children.

    Raises:
        ValueError: it is none.
    """
    if type(start) is not str or start not in STARTS:
        raise ValueError(
            f"write {' or '.join(map(repr, STARTS))}, not {start!r:.200}{nearest(start, STARTS)}"
        )
    return start


def check_variables(names: object) -> tuple[str, ...]:
    """Names of environment variables.

    Raises:
        TypeError: neither a list nor a tuple.
        ValueError: one of them is no name.
    """
    return tuple(dict.fromkeys(_variable(name) for name in _items(names, "names of variables")))


def check_layers(layers: object) -> tuple[str, ...]:
    """Layers such as "seccomp" and "landlock>=1", each once.

    Raises:
        TypeError: neither a list nor a tuple.
        ValueError: one of them is no layer.
    """
    return united(tuple(_layer(layer) for layer in _items(layers, "layers")), ())


def united(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The layers of both, each once, in the higher version."""
    versions: dict[str, int] = {}
    for name, version in map(_parts, (*one, *other)):
        versions[name] = max(version, versions.get(name, 0))
    return tuple(f"{name}>={version}" if version else name for name, version in versions.items())


def beyond(prefer: tuple[str, ...], require: tuple[str, ...]) -> tuple[str, ...]:
    """The preferred layers that are not required anyway. Each is in a list once."""
    had = dict(map(_parts, require))
    return tuple(layer for layer in prefer if had.get(_parts(layer)[0], -1) < _parts(layer)[1])


def nearest(word: object, known: Iterable[str]) -> str:
    """A hint at what was probably meant, to put behind a message; otherwise at what there is."""
    names = list(known)
    near = difflib.get_close_matches(word, names, 1) if isinstance(word, str) else []
    if near:
        return f". Did you mean {near[0]!r}?"
    return f". There are: {', '.join(sorted(names))}." if names else "."


def _items(given: object, what: str) -> Iterable[object]:
    if not isinstance(given, list | tuple):
        raise TypeError(f"write a list of {what}, not {given!r:.200}")
    return given


def _variable(name: object) -> str:
    if type(name) is not str or not name or "=" in name or not name.isprintable():
        raise ValueError(f"{name!r:.200} is no name of an environment variable")
    return name


def _layer(layer: object) -> str:
    found = _LAYER.fullmatch(layer) if isinstance(layer, str) else None
    if found is None:
        raise ValueError(f"{layer!r:.200} is no layer: write 'seccomp' or 'landlock>=1'")
    if found[1] not in LAYERS:
        raise ValueError(f"unknown layer {found[1]!r}{nearest(found[1], LAYERS)}")
    if found[2] is not None and not LAYERS[found[1]]:
        raise ValueError(f"layer {found[1]!r} comes in no versions: write it without '>={found[2]}'")
    return found[0]


def _parts(layer: str) -> tuple[str, int]:
    name, _, version = layer.partition(">=")
    return name, int(version or 0)
