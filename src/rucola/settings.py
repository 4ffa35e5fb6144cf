"""Settings: configuration files in Apache's format, and the dataclasses that they populate.

A configuration file is a Java properties file:

    # a comment
    brokerName = broker-a
    namesrvAddr=127.0.0.1:9876;\\
        127.0.0.1:9877

A key and its value are separated by `=`, `:` or white space; a backslash at the end of a line continues it; `\\t`,
`\\n`, `\\r`, `\\f` and `\\uXXXX` are escapes. A comment has a line to itself, since after a value it would be a part
of the value: a `#` after white space is an error in a file, unless it is written `\\#`.

A dataclass declares the settings of a server: the field `broker_cluster_name` has the key `brokerClusterName`, unless
it declares another (`metadata={"key": "brokerIP1"}`) or former ones (`metadata={"former": (...)}`), which are read as
well. Values are integers, true or false, names of enum members, paths (`~` and `$HOME` are expanded) and text. The keys
of a field that is a dataclass belong to the outer one, with its defaults.

Counterpart of `MixAll.properties2Object`, `object2Properties` and `java.util.Properties`. Deliberate difference: an
invalid value, such as a number outside the range in its type, is an error that names the key, and its file and line
(`located`), while Apache silently keeps the default.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar, get_type_hints

from rucola.errors import ConfigError, RemoteProtocolError
from rucola.files import local_path

T = TypeVar("T")

INT_MAX: Final = 2**31 - 1
"""Apache's maximum for most keys."""


class Range(NamedTuple):
    """Integers from `low` to `high` inclusive, in steps of `step`."""

    low: int
    high: int
    step: int = 1

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.low <= value <= self.high and (value - self.low) % self.step == 0

    def __str__(self) -> str:
        if self.step == 1:
            return f"{self.low} to {self.high}"
        return ", ".join(map(str, range(self.low, self.high, self.step))) + f" or {self.high}"


# The reference of keys in docs/ shows unit and range. A field changes the range by a further one: `Annotated[Bytes,
# Range(1, 1024)]`.
Count = Annotated[int, "", Range(1, INT_MAX)]
Milliseconds = Annotated[int, "ms", Range(0, INT_MAX)]
Interval = Annotated[Milliseconds, Range(1, INT_MAX)]
Seconds = Annotated[int, "s", Range(0, INT_MAX)]
Hours = Annotated[int, "h", Range(0, 24 * 36_500)]
Bytes = Annotated[int, "bytes", Range(1, INT_MAX)]
Percent = Annotated[int, "%", Range(0, 100)]
Port = Annotated[int, "port", Range(0, 65_535)]

MAX_REQUEST_SIZE: Final = 256 * 1024
"""Default limit of the settings in one request in bytes."""


class Secret:
    """Text that no `repr`, log, error or response contains, such as a password. It is written as

        file:PATH     the first line of a file
        env:NAME      an environment variable
        anything else the secret itself, as Apache's files have it

    Secrets that are written alike are equal.
    """

    __slots__ = ("_source",)

    def __init__(self, source: str) -> None:
        self._source = source

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._source == other._source

    def __hash__(self) -> int:
        return hash(self._source)

    def reveal(self) -> str:
        """Return the secret, read at each call. ConfigError, which does not contain it, if there is none."""
        kind, _, name = self._source.partition(":")
        if kind == "file":
            try:
                return Path(name).read_text(encoding="utf-8").split("\n", 1)[0].rstrip("\r")
            except (OSError, UnicodeDecodeError) as error:
                why = getattr(error, "strerror", None) or "it is not UTF-8 text"
                raise ConfigError(f"the secret in {name} cannot be read: {why}") from None
        if kind == "env":
            if name not in os.environ:
                raise ConfigError(f"the secret in the environment variable {name} cannot be read: it is not set")
            return os.environ[name]
        return self._source


_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_COMMENT = re.compile(r"(\s)#")
# Possessive: backtracking would need 200 bytes of memory for each byte of the text.
_KEY = re.compile(r"((?:[^\\=:\s]++|\\.)*+)[ \t\f]*+[=:]?[ \t\f]*+", re.DOTALL)


def parse(text: str) -> dict[str, str]:
    """Parse properties; the last of two equal keys wins."""
    return {_unescape(key): _unescape(value) for _, key, value in _entries(text)}


def parse_request(body: bytes, max_size: int = MAX_REQUEST_SIZE) -> dict[str, str]:
    """Parse the settings in a request. RemoteProtocolError if they are too large or not UTF-8."""
    if len(body) > max_size:
        raise RemoteProtocolError(f"settings of {len(body)} bytes; the limit is {max_size} (maxJsonBodySize)")
    try:
        return parse(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a configuration that is not UTF-8: {error.reason}") from None


def read(path: Path) -> dict[str, str]:
    """Parse a properties file; ConfigError if it is unreadable, not UTF-8, or has a comment after a value."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: byte {error.start} is not UTF-8; save it as UTF-8 text") from None
    for number, key, value in _entries(text):
        if _COMMENT.search(value):
            key = _unescape(key)
            raise ConfigError(
                f"{path}, line {number}: {key}: a comment after a value would belong to the value; give it a line "
                "to itself, or write \\# for the sign",
                subject=key,
            )
    return parse(text)


@contextmanager
def located(path: Path | None) -> Iterator[None]:
    """Add the file, and the line of the key that is its subject, to a ConfigError. Without a file, leave it."""
    try:
        yield
    except ConfigError as error:
        if path is None:
            raise
        with suppress(OSError, UnicodeDecodeError):
            lines = {_unescape(key): number for number, key, _ in _entries(path.read_text(encoding="utf-8"))}
            if (line := lines.get(error.subject)) is not None:
                raise ConfigError(f"{path}, line {line}: {error}", subject=error.subject) from None
        raise ConfigError(f"{path}: {error}", subject=error.subject) from None


def render(properties: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def replaced(text: str, changes: Mapping[str, str]) -> str:
    """Return the text with changed or appended values; comments, other keys and the order are preserved."""
    lines: list[str] = []
    at: dict[str, int] = {}
    for _, line in _logical_lines(text):
        if _is_setting(line):
            (key,) = parse(line)
            if key in changes:
                line = ""
                if key in at:
                    lines[at[key]] = ""
                at[key] = len(lines)
        lines.append(line)
    for key, value in changes.items():
        line = f"{key}={_escape(value)}"
        if key in at:
            lines[at[key]] = line
        else:
            lines.append(line)
    return "".join(f"{line}\n" for line in lines)


def key_of(field: dataclasses.Field[Any]) -> str:
    head, *tail = field.name.split("_")
    return str(field.metadata.get("key") or head + "".join(map(str.capitalize, tail)))


def to_properties(config: Any) -> dict[str, str]:
    """Convert a dataclass to keys and values, without None and `Secret`."""
    properties: dict[str, str] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            properties |= to_properties(value)
        elif value is not None and not isinstance(value, Secret):
            properties[key_of(field)] = to_text(value)
    return properties


def changes(config: Any, properties: Mapping[str, str]) -> dict[str, Any]:
    """Convert properties to fields of `config`, an instance or class, groups whole. ConfigError names the key."""
    if isinstance(config, type):
        return _changes(config, properties, _default)
    return _changes(type(config), properties, lambda field: getattr(config, field.name))


def fill(kind: type[T], properties: Mapping[str, str], **defaults: Any) -> T:
    """Create the dataclass `kind` from properties; `defaults` are fields for missing keys."""

    def present(field: dataclasses.Field[Any]) -> Any:
        return defaults[field.name] if field.name in defaults else _default(field)

    return kind(**(defaults | _changes(kind, properties, present)))


def _changes(
    kind: type[Any], properties: Mapping[str, str], present: Callable[[dataclasses.Field[Any]], Any]
) -> dict[str, Any]:
    hints = _hints[kind]
    found: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            group = present(field)
            if inner := changes(group, properties):
                found[field.name] = dataclasses.replace(group, **inner)
            continue
        # If a file has both spellings, the current one wins.
        for key in _spellings(field):
            if key in properties:
                found[field.name] = _value(key, properties[key].strip(), hints[field.name])
                break
    return found


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def check(config: Any) -> None:
    """Raise ConfigError for an integer outside its range, in a dataclass that a program filled."""
    for field, hint, allowed in _ranges(type(config)):
        _check_range(key_of(field), getattr(config, field.name), hint, allowed)


class _Hints(dict[type[Any], dict[str, Any]]):
    """The annotations of dataclasses, evaluated once: 0.8 ms for a broker's. mypy rejects `functools.cache`."""

    def __missing__(self, kind: type[Any]) -> dict[str, Any]:
        hints = self[kind] = get_type_hints(kind, include_extras=True)
        return hints


_hints: Final = _Hints()


def _ranges(kind: type[Any]) -> list[tuple[dataclasses.Field[Any], Any, Range]]:
    hints = [(field, _hints[kind][field.name]) for field in dataclasses.fields(kind)]
    return [(field, hint, allowed) for field, hint in hints if (allowed := range_of(hint)) is not None]


def range_of(hint: Any) -> Range | None:
    """Return the last range in an annotation; None without one."""
    ranges = [item for item in getattr(hint, "__metadata__", ()) if isinstance(item, Range)]
    return ranges[-1] if ranges else None


def unit_of(hint: Any) -> str:
    return next((item for item in getattr(hint, "__metadata__", ()) if isinstance(item, str)), "")


def unknown(kinds: Iterable[type[Any]], properties: Mapping[str, str]) -> list[str]:
    known = keys_of(kinds)
    return [key for key in properties if key not in known]


def without_effect(kinds: Iterable[type[Any]], ignored: Collection[str], properties: Mapping[str, str]) -> list[str]:
    """Return the unknown keys, all in `ignored`. ConfigError, with the nearest keys, for any other."""
    kinds = tuple(kinds)
    unused = unknown(kinds, properties)
    for key in unused:
        if key not in ignored:
            raise unknown_key(key, keys_of(kinds) | set(ignored))
    return unused


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    by_lower_case = {one.lower(): one for one in known}
    near = difflib.get_close_matches(key.lower(), by_lower_case, n=1)
    hint = f"; did you mean {by_lower_case[near[0]]}?" if near else ""
    return ConfigError(f"{key}: there is no such setting{hint}", subject=key)


def keys_of(kinds: Iterable[type[Any]]) -> set[str]:
    known: set[str] = set()
    for kind in kinds:
        hints = _hints[kind]
        for field in dataclasses.fields(kind):
            is_group = dataclasses.is_dataclass(hints[field.name])
            known |= keys_of([hints[field.name]]) if is_group else {*_spellings(field)}
    return known


def _spellings(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    return key_of(field), *field.metadata.get("former", ())


def _entries(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield number of the line, key and value of each setting, with their escapes."""
    for number, line in _logical_lines(text):
        if _is_setting(line):
            key = _KEY.match(line)
            assert key is not None
            yield number, key[1], line[key.end() :]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers from 1 on; settings with continuations and without leading white space."""
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        stripped = line.lstrip()
        if not _is_setting(stripped):
            yield number, line
            continue
        parts = [stripped]
        while _is_continued(parts[-1]):
            parts[-1] = parts[-1][:-1]
            parts.append(next(lines, (0, ""))[1].lstrip())
        yield number, "".join(parts)


def _is_setting(line: str) -> bool:
    return line.lstrip()[:1] not in ("", "#", "!")


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _ESCAPED.get(m[1], m[1]), text)


def _escape(value: str) -> str:
    return _COMMENT.sub(r"\1\\#", value.strip().replace("\\", "\\\\"))


def to_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.name if isinstance(value, Enum) else str(value)


def _check_range(key: str, value: int, hint: Any, allowed: Range) -> None:
    if value not in allowed:
        unit = unit_of(hint)
        raise ConfigError(
            f"{key}={value}: expected {allowed}" + (f" {unit}" if unit not in ("", "port") else ""), subject=key
        )


def _value(key: str, text: str, hint: Any) -> Any:
    if (allowed := range_of(hint)) is not None:
        value = _value(key, text, int)
        _check_range(key, value, hint, allowed)
        return value
    try:
        if hint is bool:
            return {"true": True, "false": False}[text.lower()]
        if hint is int:
            return int(text)
        if isinstance(hint, type) and issubclass(hint, Enum):
            return hint[text]
        if hint in (Path | None, Secret | None) and not text:
            return None
        if hint == Secret | None:
            return Secret(text)
        if hint is Path or hint == Path | None:
            return local_path(os.path.expanduser(os.path.expandvars(text)))
        return text
    except (KeyError, ValueError):
        expected = {bool: "true or false", int: "an integer"}.get(hint) or "one of " + ", ".join(hint.__members__)
        raise ConfigError(f"{key}={text}: expected {expected}", subject=key) from None
