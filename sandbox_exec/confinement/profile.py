"""Named policy: found by name or path, read strictly, merged with what it extends.

The front of this package: what others import of limits and profiles, they import from here.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Final

from sandbox_exec.confinement.limits import Limits
from sandbox_exec.confinement.policy import Profile, nearest, refusal
from sandbox_exec.confinement.schema import MAX_CHARACTERS, Source, read
from sandbox_exec.errors import ProfileError

__all__ = ["Limits", "Profile", "admitted", "available", "load_profile", "parse", "refusal", "shipped"]

VARIABLE: Final = "SANDBOX_EXEC_PROFILES"
SUFFIX: Final = ".toml"
MAX_CHAIN: Final = 8
_SHIPPED: Final = (Path(__file__).parent.parent / "profiles", Path(__file__).parents[2] / "profiles")


def load_profile(name_or_path: str | os.PathLike[str]) -> Profile:
    """The profile of this name, or in this file, resolved.

    Args:
        name_or_path: a path if it has a slash, ends in ".toml" or is no str; else a name, looked up in the
            folders of $SANDBOX_EXEC_PROFILES, in profiles/ of the configuration directory, and among the
            shipped ones. The first one found counts.

    Raises:
        ProfileError: unknown or malformed, or so is one that it extends.
    """
    given = os.fspath(name_or_path) if isinstance(name_or_path, os.PathLike) else name_or_path
    if type(given) is not str or "\0" in given or not given:
        msg = f"a profile is named by a non-empty string or a path, not {name_or_path!r:.200}"
        raise ProfileError(msg)
    if given is name_or_path and not _is_path(given):
        file = _find(given)
        if file is None:
            msg = f"no profile {given!r}{nearest(given, available())}"
            raise ProfileError(msg)
        return _loaded(given, file)
    file = Path(given)
    return _loaded(file.stem, file)


def admitted(profile: str | os.PathLike[str] | Profile) -> Profile:
    """The profile, loaded unless it is one; only if this version can launch under it.

    Raises:
        ProfileError: it cannot be had, or requires what this version does not have.
    """
    found = profile if isinstance(profile, Profile) else load_profile(profile)
    if (reason := refusal(found)) is not None:
        raise ProfileError(reason)
    return found


def available() -> dict[str, Path]:
    """Every profile that can be named, by name: the file that counts."""
    found: dict[str, Path] = {}
    for folder in _folders():
        found = _in(folder) | found
    return shipped() | found


def shipped() -> dict[str, Path]:
    """The profiles that come with this package, by name."""
    return _in(_shipped())


def parse(
    name: str, text: str, file: Path | None = None, *, below: tuple[tuple[str, Path | None], ...] = ()
) -> Profile:
    """A profile from its TOML, merged with what it extends.

    Args:
        name: what to call it.
        text: the TOML.
        file: where that was read.
        below: name and file of each profile that extends this one, the outermost first.

    Raises:
        ProfileError: it is not valid; the text names the file, the line and the key.
    """
    source = Source(name, "" if file is None else str(file), text)
    said = read(source)
    own = Profile(
        name,
        said.start or "exec",
        said.limits,
        said.environment or (),
        said.require,
        said.prefer,
        said.description,
        source.file,
    )
    if said.extends is None:
        return own
    chain = (*below, (name, file))
    parent = _parent(source, said.extends, chain)
    asked = replace(
        own,
        start=said.start or parent.start,
        environment=parent.environment if said.environment is None else said.environment,
    )
    return asked.intersected(parent)


def _parent(source: Source, reference: str, chain: tuple[tuple[str, Path | None], ...]) -> Profile:
    if _is_path(reference):
        file = Path(source.file).parent / reference
        name = file.stem
    else:
        found = _find(reference)
        if found is None:
            hint = nearest(reference, available())
            raise source.error(f"extends: no profile {reference!r}{hint}", "extends")
        name, file = reference, found
    names = " -> ".join(repr(link) for link, _ in (*chain, (name, file)))
    if any(place is not None and _same(place, file) for _, place in chain):
        raise source.error(f"extends goes round in a loop: {names}", "extends")
    if len(chain) >= MAX_CHAIN:
        raise source.error(f"extends goes over more than {MAX_CHAIN} profiles: {names}", "extends")
    try:
        text = _text(file)
    except OSError as error:
        raise source.error(f"extends: cannot read {file}: {error.strerror}", "extends") from error
    return parse(name, text, file, below=chain)


def _loaded(name: str, file: Path) -> Profile:
    try:
        text = _text(file)
    except OSError as error:
        msg = f"cannot read profile {name!r}, {file}: {error.strerror}"
        raise ProfileError(msg) from error
    return parse(name, text, file)


def _text(file: Path) -> str:
    # Not blocking: opening a FIFO would wait for its writer.
    number = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        with open(number, "rb", closefd=False) as opened:
            data = opened.read(4 * MAX_CHARACTERS + 1)
    finally:
        os.close(number)
    if len(data) > 4 * MAX_CHARACTERS:
        raise OSError(errno.EFBIG, f"a profile has at most {MAX_CHARACTERS:,} characters")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise OSError(errno.EILSEQ, f"line {line} is no UTF-8") from error


def _find(name: str) -> Path | None:
    """The file that counts for a name, even if it cannot be read."""
    files = (folder / f"{name}{SUFFIX}" for folder in (*_folders(), _shipped()))
    return next((file for file in files if os.path.lexists(file)), None)


def _shipped() -> Path:
    return next((folder for folder in _SHIPPED if folder.is_dir()), _SHIPPED[0])


def _folders() -> list[Path]:
    """Where names are looked up before the shipped profiles, the first one first."""
    from platformdirs import user_config_path  # only where profiles are looked for

    folders = [Path(folder) for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]
    own = user_config_path("sandbox-exec") / "profiles"
    # Not absolute: there is no home to be had, and what lies below the current directory is not meant.
    return [*folders, own] if own.is_absolute() else folders


def _in(folder: Path) -> dict[str, Path]:
    try:
        files = list(folder.iterdir())
    except OSError:  # it need not be there
        return {}
    return {file.stem: file for file in files if file.suffix == SUFFIX}


def _is_path(given: str) -> bool:
    return "/" in given or given.endswith(SUFFIX)


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
