"""A child's text for people: nothing in it may move the cursor, change colours or reorder the line."""

from __future__ import annotations


def plain(text: str) -> str:
    """The text with everything but printable characters, newlines and tabs as visible escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
