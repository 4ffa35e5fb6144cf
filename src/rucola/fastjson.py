"""JSON in the dialect of Apache RocketMQ's fastjson.

It extends plain JSON:

* map keys may be integers without quotes: `{"offsetTable":{"T@g":{0:33,1:32}}}`;
* map keys may be whole objects: `{{"brokerName":"a","queueId":0,"topic":"T"}:5}`;
* names may be bare words or in single quotes, and a comma may trail.

`loads` falls back to a slow, tolerant parser for documents that msgspec rejects. Unquoted keys are `int`, objects as
keys `ObjectKey`; convert with `int(key)` to accept quoted numbers. `dumps` writes the compact form of the wire,
`dumps_pretty` fastjson's PrettyFormat of `config/*.json`: a tab per level, no space after the colon; maps with integer
keys keep their entries on one line.

Counterpart of `com.alibaba.fastjson.JSON` as RocketMQ 4.9 uses it. Deliberate differences: nesting deeper than
`MAX_DEPTH` is rejected, while fastjson overflows its stack; half of a surrogate pair is parsed as U+FFFD, since UTF-8
cannot encode it.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn, TypeVar

import msgspec

from rucola.errors import RemoteProtocolError

S = TypeVar("S", bound=msgspec.Struct)

MAX_DEPTH = 64
"""Of the tolerant parser; RocketMQ never exceeds six."""

MAX_TOLERANT_SIZE = 32 * 1024
"""Bytes that an event loop parses tolerantly: 20 ms."""

MAX_DIGITS = 400
"""Of a number in the tolerant parser; the largest double has 309 digits."""

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INTEGERS = re.compile(r"\{(-?[0-9]{1,19}:-?[0-9]{1,19}(?:,-?[0-9]{1,19}:-?[0-9]{1,19})*)\}")
_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.]*")
_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_ESCAPED = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]|[\ud800-\udfff]")


class ObjectKey(tuple[tuple[str, Any], ...]):
    """An object as a map's key: pairs sorted by name."""

    __slots__ = ()

    @classmethod
    def of(cls, members: dict[str, Any]) -> ObjectKey:
        return cls(sorted(members.items()))

    def as_dict(self) -> dict[str, Any]:
        return dict(self)


def loads(data: bytes | bytearray | memoryview | str, max_tolerant_size: int | None = None) -> Any:
    """Parse a document, plain JSON above `max_tolerant_size`. RemoteProtocolError has the error's position."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    if max_tolerant_size is not None and len(data) > max_tolerant_size:
        raise RemoteProtocolError(
            f"JSON of {len(data)} bytes that is not plain JSON (names in double quotes); the limit for other forms is "
            f"{max_tolerant_size} bytes"
        )
    if not isinstance(data, str):
        try:
            data = str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"JSON at byte {error.start}: not UTF-8") from None
    return _Reader(data).document()


def to_struct(struct_type: type[S], value: Any) -> S:
    """Convert a decoded value. RemoteProtocolError if it does not fit."""
    try:
        return msgspec.convert(_plain(value), struct_type, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"body {struct_type.__name__}: {error}", struct_type.__name__) from None


def _plain(value: Any) -> Any:
    """Remove null members and make integer keys text, for msgspec."""
    if isinstance(value, dict):
        return {
            str(key) if isinstance(key, int) else key: _plain(member)
            for key, member in value.items()
            if member is not None
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def dumps(value: Any) -> bytes:
    """Encode in the compact form: integer keys unquoted, members in their order."""
    out: list[str] = []
    _write(value, out)
    return "".join(out).encode("utf-8")


def dumps_pretty(value: Any) -> str:
    out: list[str] = []
    _write_pretty(value, out, 0)
    return "".join(out)


class _Encoded(str):
    """JSON that `dumps_pretty` writes as it is."""

    __slots__ = ()


def pretty_entry(name: str, value: msgspec.Struct, level: int) -> str:
    """Encode a member of an object for `pretty_object`."""
    out = ["\n" + "\t" * level + _key(name) + ":"]
    _write_pretty(msgspec.to_builtins(value), out, level)
    return "".join(out)


def pretty_object(entries: list[str], level: int) -> Any:
    """Return an object of `pretty_entry` texts, one level deeper, as a value for `dumps_pretty`."""
    return _Encoded("{" + ",".join(entries) + "\n" + "\t" * level + "}") if entries else {}


class _Reader:
    """Recursive descent parser; `at` is the index of the next character."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def document(self) -> Any:
        value = self.value(0)
        if self.peek():
            self.fail("unexpected text after the end of the document")
        return value

    def fail(self, why: str) -> NoReturn:
        raise RemoteProtocolError(f"JSON at character {self.at}: {why}")

    def peek(self) -> str:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()
        return self.text[self.at : self.at + 1]

    def value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        first = self.peek()
        if first == "{":
            return self.object(depth)
        if first == "[":
            return self.array(depth)
        if first in ('"', "'") and first:
            return self.string(first)
        if match := _NUMBER.match(self.text, self.at):
            if match.end() - match.start() > MAX_DIGITS:
                self.fail(f"a number of more than {MAX_DIGITS} digits")
            self.at = match.end()
            return float(match[0]) if match[1] or match[2] else int(match[0])
        if (match := _WORD.match(self.text, self.at)) and match[0] in _WORDS:
            self.at = match.end()
            return _WORDS[match[0]]
        self.fail(f"expected a value, found {first!r}" if first else "the text ends where a value is expected")

    def object(self, depth: int) -> dict[Any, Any]:
        if (flat := self.flat_object()) is not None:
            return flat
        self.at += 1
        members: dict[Any, Any] = {}
        while (first := self.peek()) != "}":
            key = self.key(first, depth)
            if self.peek() != ":":
                self.fail("expected ':' after a key")
            self.at += 1
            members[key] = self.value(depth + 1)
            self.separator("}")
        self.at += 1
        return members

    def flat_object(self) -> dict[Any, Any] | None:
        """Read an object of integers, or plain JSON without another inside; None for others. Five times as fast."""
        begin, end = self.at, self.text.find("}", self.at) + 1
        members: dict[Any, Any]
        if match := _INTEGERS.match(self.text, begin):
            end = match.end()
            members = {int(key): int(item) for key, _, item in (pair.partition(":") for pair in match[1].split(","))}
        else:
            try:
                members = msgspec.json.decode(self.text[begin:end])
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                return None
        self.at = end
        return members

    def array(self, depth: int) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while self.peek() != "]":
            items.append(self.value(depth + 1))
            self.separator("]")
        self.at += 1
        return items

    def separator(self, closing: str) -> None:
        found = self.peek()
        if found == ",":
            self.at += 1
        elif found != closing:
            self.fail(f"expected ',' or '{closing}'" + (f", found {found!r}" if found else ", the text ends"))

    def key(self, first: str, depth: int) -> Any:
        if first in ('"', "'") and first:
            return self.string(first)
        if first == "{":
            key = self.value(depth + 1)
            try:
                key = ObjectKey.of(key)
                hash(key)
            except TypeError:
                self.fail("an object that is a key has members that cannot be compared")
            return key
        if match := _NUMBER.match(self.text, self.at):
            if match.end() - match.start() > MAX_DIGITS:
                self.fail(f"a number of more than {MAX_DIGITS} digits")
            self.at = match.end()
            return match[0] if match[1] or match[2] else int(match[0])
        if match := _WORD.match(self.text, self.at):
            self.at = match.end()
            return match[0]
        self.fail(f"expected a key, found {first!r}" if first else "the text ends where a key is expected")

    def string(self, quote: str) -> str:
        start = self.at
        end = start + 1
        while True:
            end = self.text.find(quote, end)
            if end < 0:
                self.fail("a string is not terminated")
            # An odd number of backslashes escapes the quote: "a\\" ends here, "a\" goes to the next one.
            backslashes = 0
            while self.text[end - 1 - backslashes] == "\\":
                backslashes += 1
            if backslashes % 2 == 0:
                break
            end += 1
        self.at = end + 1
        raw = self.text[start + 1 : end]
        return _unescape(raw) if "\\" in raw else raw


def _unescape(raw: str) -> str:
    text = _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _ESCAPED.get(m[1], m[1]), raw)
    return _SURROGATES.sub(lambda m: m[0].encode("utf-16", "surrogatepass").decode("utf-16", "replace"), text)


def _scalar(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8")


def _key(key: Any) -> str:
    if isinstance(key, ObjectKey):
        return dumps(key.as_dict()).decode("utf-8")
    return str(int(key)) if isinstance(key, int) else _scalar(key)


def _is_of_integers(value: dict[Any, Any]) -> bool:
    return all(key.__class__ is int is item.__class__ for key, item in value.items())


def _integers(value: dict[int, int]) -> str:
    return ",".join([f"{key}:{item}" for key, item in value.items()])


def _write(value: Any, out: list[str]) -> None:
    # Tables of offsets and lists of names are long and flat: 3 and 20 times faster as a whole.
    if isinstance(value, dict) and _is_of_integers(value):
        out.append(f"{{{_integers(value)}}}")
    elif isinstance(value, list) and all(item.__class__ is str for item in value):
        out.append(_scalar(value))
    elif isinstance(value, dict):
        out.append("{")
        for count, (key, member) in enumerate(value.items()):
            out.append(f"{',' if count else ''}{_key(key)}:")
            _write(member, out)
        out.append("}")
    elif isinstance(value, (list, tuple, set, frozenset)):
        out.append("[")
        for count, item in enumerate(value):
            if count:
                out.append(",")
            _write(item, out)
        out.append("]")
    elif isinstance(value, msgspec.Struct):
        _write(msgspec.to_builtins(value), out)
    else:
        out.append(_scalar(value))


def _write_pretty(value: Any, out: list[str], level: int) -> None:
    if isinstance(value, _Encoded):
        out.append(value)
    elif isinstance(value, dict) and value and _is_of_integers(value):
        indent = "\t" * level
        out.append(f"{{{_integers(value)}\n{indent}}}")
    elif isinstance(value, dict):
        out.append("{")
        one_line = bool(value) and all(isinstance(key, int) for key in value)
        indent = "\n" + "\t" * (level + 1)
        for count, (key, member) in enumerate(value.items()):
            out.append("," if count else "")
            out.append(("" if one_line else indent) + f"{_key(key)}:")
            _write_pretty(member, out, level + 1)
        out.append("\n" + "\t" * level + "}" if value else "}")
    elif isinstance(value, (list, tuple)):
        _write(value, out)
    else:
        out.append(_scalar(value))
