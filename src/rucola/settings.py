"""Settings: Apache's configuration files, and the dataclasses that they fill.

A configuration file is a Java properties file, as `broker.conf` and `namesrv.conf` are:

    # a comment
    brokerName = broker-a
    namesrvAddr=127.0.0.1:9876;\\
        127.0.0.1:9877

A key and its value are parted by `=`, `:` or white space; a backslash at the end goes on in the next line;
`\\t`, `\\n`, `\\r`, `\\f` and `\\uXXXX` are escapes.

A dataclass declares the settings of one server: the field `broker_cluster_name` is the key `brokerClusterName`. Where
the key does not follow from the field's name, the field says it: `field(metadata={"key": "brokerIP1"})`. Values are
whole numbers, true or false, names of enum members, paths (in which `~` and `$HOME` are the home) and text.

Answers to `MixAll.properties2Object`, `object2Properties` and `java.util.Properties`. Deliberate difference: a value
that cannot be read is an error that names the key, where Apache keeps the default without a word.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from rucola.errors import ConfigError

T = TypeVar("T")

_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY = re.compile(r"((?:[^\\=:\s]|\\.)*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)


def parse(text: str) -> dict[str, str]:
    """The keys and values of a properties file; a key that comes twice has its last value."""
    properties: dict[str, str] = {}
    lines = iter(text.splitlines())
    for line in lines:
        line = line.lstrip()
        if not line or line[0] in "#!":
            continue
        while _is_continued(line):
            line = line[:-1] + next(lines, "").lstrip()
        key = _KEY.match(line)
        assert key is not None
        properties[_unescape(key[1])] = _unescape(line[key.end() :])
    return properties


def read(path: Path) -> dict[str, str]:
    """As `parse`, from a file. ConfigError where it cannot be read or is no text."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def render(properties: Mapping[str, str]) -> str:
    """One `key=value` a line, as Apache's servers report their configuration."""
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """A properties file with other values for some keys: in their lines where they have one, else at the end.

    Comments, other keys and their order stay. Of a key that comes twice the last line is kept.
    """
    lines: list[str] = []
    at: dict[str, int] = {}
    pending = iter(text.splitlines())
    for line in pending:
        whole = line.lstrip()
        if whole and whole[0] not in "#!":
            while _is_continued(whole):
                whole = whole[:-1] + next(pending, "").lstrip()
            (key,) = parse(whole)
            if key in changes:
                line = ""
                if key in at:
                    lines[at[key]] = ""
                at[key] = len(lines)
            else:
                line = whole
        lines.append(line)
    for key, value in changes.items():
        line = f"{key}={_escape(value)}"
        if key in at:
            lines[at[key]] = line
        else:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def key_of(field: dataclasses.Field[Any]) -> str:
    """The key of a field: `brokerName` for `broker_name`."""
    head, *tail = field.name.split("_")
    return str(field.metadata.get("key") or head + "".join(map(str.capitalize, tail)))


def to_properties(config: Any) -> dict[str, str]:
    """A dataclass as keys and values; fields that are None are left out."""
    values = {key_of(field): getattr(config, field.name) for field in dataclasses.fields(config)}
    return {key: _text(value) for key, value in values.items() if value is not None}


def changes(kind: type[Any], properties: Mapping[str, str]) -> dict[str, Any]:
    """The fields of the dataclass `kind` that the properties set, by field name; keys of others are passed over.

    ConfigError names the key whose value cannot be read.
    """
    hints = get_type_hints(kind)
    return {
        field.name: _value(key, properties[key].strip(), hints[field.name])
        for field in dataclasses.fields(kind)
        if (key := key_of(field)) in properties
    }


def fill(kind: type[T], properties: Mapping[str, str], **defaults: Any) -> T:
    """The dataclass that the properties give; `defaults` are fields by name, for what the properties leave open."""
    return kind(**(defaults | changes(kind, properties)))


def unknown(kinds: Iterable[type[Any]], properties: Mapping[str, str]) -> list[str]:
    """The keys that belong to none of the dataclasses."""
    known = {key_of(field) for kind in kinds for field in dataclasses.fields(kind)}
    return [key for key in properties if key not in known]


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _ESCAPED.get(m[1], m[1]), text)


def _escape(value: str) -> str:
    return value.strip().replace("\\", "\\\\")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.name if isinstance(value, Enum) else str(value)


def _value(key: str, text: str, hint: Any) -> Any:
    try:
        if hint is bool:
            return {"true": True, "false": False}[text.lower()]
        if hint is int:
            return int(text)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint[text]
        if hint is Path or hint == Path | None:
            return Path(os.path.expanduser(os.path.expandvars(text)))
        return text
    except (KeyError, ValueError):
        expected = {bool: "true or false", int: "a whole number"}.get(hint) or "one of " + ", ".join(hint.__members__)
        raise ConfigError(f"{key}={text}: expected {expected}") from None
