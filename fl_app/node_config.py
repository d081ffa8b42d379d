"""A device's node configuration as its owner writes it: ``KEY=VALUE``, without quotes for texts.

Flower reads one line of TOML values, in which a text needs quotes that reach it through a shell.
"""

import contextlib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping

from fl_app.errors import ConfigError

NodeValue = bool | int | float | str

_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)=")
_QUOTED = re.compile(r""""(?:[^"\\]|\\.)*"(?=\s|\Z)|'[^']*'(?=\s|\Z)""")
_NUMBER = re.compile(r"[\w.+-]+")
_TEXT_END = re.compile(r"\s+[A-Za-z0-9_-]+=|\s*\Z")
# Between Flower's quotes there may be anything but a quote.
_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')


def read_pairs(words: Iterable[str]) -> dict[str, NodeValue]:
    """Return what an owner's words say.

    Parameters
    ----------
    words : iterable of str
        Each is one ``KEY=VALUE``, whatever the value is. A single word may hold several, with
        spaces between them, as a service's setting does: there a value ends with its quote, with
        its JSON object, or before the next key. Numbers, true and false are what they look like; a
        TOML string is the text in it; all else is text.

    Raises
    ------
    ConfigError
        If a word is no such pair, or a key comes twice.
    """
    found: dict[str, NodeValue] = {}
    given = [word for word in words if word.strip()]
    for word in given:
        for key, text in _split(word) if len(given) == 1 else [_read_pair(word)]:
            if key in found:
                raise ConfigError(key, text, "one value: it is given twice")
            found[key] = _read_value(key, text)
    return found


def write_pairs(values: Mapping[str, NodeValue]) -> str:
    """Return values as Flower's ``--node-config`` reads them."""
    return " ".join(f"{key}={_write_value(value)}" for key, value in values.items())


def _read_pair(word: str) -> tuple[str, str]:
    """Return key and value of a word whose value nothing ends: a folder may have any name."""
    key = _find_key(word)
    return key[1], word[key.end() :]


def _split(word: str) -> Iterator[tuple[str, str]]:
    while word.strip():
        key = _find_key(word)
        end = _find_end(word, key.end())
        yield key[1], word[key.end() : end]
        word = word[end:]


def _find_key(word: str) -> re.Match[str]:
    key = _KEY.match(word)
    if key is None:
        raise ConfigError("node configuration", word, "KEY=VALUE")
    return key


def _find_end(word: str, start: int) -> int:
    """Return where the value that starts there ends."""
    quoted = _QUOTED.match(word, start)
    if quoted is not None:
        return quoted.end()
    if word.startswith("{", start):
        with contextlib.suppress(ValueError, RecursionError):
            end = json.JSONDecoder().raw_decode(word, start)[1]
            if not word[end : end + 1].strip():
                return end
    found = _TEXT_END.search(word, start)
    return len(word) if found is None else found.start()


def _read_value(key: str, text: str) -> NodeValue:
    if _QUOTED.fullmatch(text):
        try:
            return str(tomllib.loads(f"value = {text}")["value"])
        except ValueError:
            raise ConfigError(key, text, "a TOML string, or the text without quotes") from None
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(key, text, "UTF-8") from None
    if _NUMBER.fullmatch(text):
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except ValueError:
            return text
        if isinstance(value, bool | int | float):
            return value
    return text


def _write_value(value: NodeValue) -> str:
    if isinstance(value, str):
        return f'"{_ESCAPED.sub(_escape, value)}"'
    return str(value).lower()


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
