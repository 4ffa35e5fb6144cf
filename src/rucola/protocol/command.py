"""RemotingCommand: one request or response, and its encoding in both header serializations.

A frame on the wire; integers are big-endian, sizes in parentheses are bytes:

    +----------------+---------------------------+-----------------+-------------+
    | length (4)     | serializer (1) | size (3) | header (size)   | body        |
    +----------------+---------------------------+-----------------+-------------+

`length` does not include itself. `serializer` is 0 for a JSON header and 1 for a binary ROCKETMQ header. A response has
the serializer of its request.

**JSON header.** Members in any order. `extFields` holds the typed header of the request code, its values as text. A
request for the route of topic T, with code 105, no body, and opaque 7:

    00 00 00 7f                 length 127
    00 00 00 7b                 serializer 0, header size 123
    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON",
    "version":409}

**ROCKETMQ header.**

    code (2) | language (1) | version (2) | opaque (4) | flag (4) |
    remark size (4) + remark | ext size (4) + { key size (2) + key | value size (4) + value } ...

The same request:

    00 00 00 25                 length 37
    01 00 00 21                 serializer 1, header size 33
    00 69 | 00 | 01 99          code 105, language 0 (JAVA), version 409
    00 00 00 07 | 00 00 00 00   opaque 7, flag 0
    00 00 00 00                 no remark
    00 00 00 0c                 ext fields of 12 bytes
    00 05 74 6f 70 69 63        key size 5, "topic"
    00 00 00 01 54              value size 1, "T"

`flag` bit 0 marks a response, bit 1 a one-way request. Requests may have strings, numbers or booleans in `extFields`,
so typed headers are decoded in lax mode. In responses they must be strings: C++ clients ignore all others.

**Decoding in one pass.** The type of the ext fields depends on the request code in the same JSON document:


    1. For a new code, the ext fields stay raw JSON in `received_ext`, until `decode_header` decodes them into a struct.
    2. It registers the struct under the first bytes of headers with this code, such as `{"code":310,`.
    3. Later headers with these first bytes are decoded in one pass, and `decode_header` returns the finished struct.
    4. If that fails (a null, a number for a text, another member order), the header is decoded as in 1, and if it is
       not valid JSON, leniently as in fastjson.

As in Apache, a missing code is 0, the language may be a name or a number, invalid UTF-8 becomes U+FFFD, and a negative
size of the ext fields means none.

Corresponds to `RemotingCommand`, `RemotingSerializable` and `RocketMQSerializable` of Apache RocketMQ 4.9.8. Deliberate
differences: errors name the missing or malformed field, and the meaning of a one-letter field; an unreadable header is
answered if its opaque is readable, where Apache closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from itertools import count
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from rucola import fastjson
from rucola.domain.version import VERSION, VERSION_TEXT
from rucola.errors import RemoteProtocolError
from rucola.protocol.codes import LanguageCode, name_of
from rucola.protocol.header_limits import (
    BINARY_HEAD,
    MAX_EXT_FIELDS,
    MAX_TOLERANT_HEADER,
    HeaderError,
    members_of_long,
    too_many_fields,
)

LANGUAGE = LanguageCode.PYTHON.name

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

UNREADABLE = -1
"""The code of an UnreadableCommand, which no request has."""

MAX_ROCKETMQ_KEY: Final = 2**15 - 1
"""Maximum bytes of an ext field's name. Encoding a name that was not UTF-8 makes it longer."""

_PREFIX = Struct(">iI")  # length, serializer << 24 | header size
_SIZE = Struct(">i")
_KEY_SIZE = Struct(">h")

_opaques = count(1)


class SerializeType(IntEnum):
    """The serializer byte of a header."""

    JSON = 0
    ROCKETMQ = 1


# Reading an enum member costs 0.1 µs in CPython 3.11, a global a quarter of it.
JSON = SerializeType.JSON
ROCKETMQ = SerializeType.ROCKETMQ


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """A typed header: `extFields`, in camelCase. A field without a default is required; None is not sent."""


H = TypeVar("H", bound=Header)
E = TypeVar("E")

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class RemotingCommand(msgspec.Struct, eq=False, gc=False):
    """One request or response; `ext` holds the ext fields to send, or caches `ext_fields`.

    For a received JSON header, `json_header` is all of it, and `received_ext` its ext fields: a typed header or raw
    JSON.
    """

    code: int
    ext: dict[str, str] | None = None
    body: bytes = b""
    flag: int = 0
    opaque: int = 0
    remark: str | None = None
    language: str = LanguageCode.OTHER.name
    version: int = 0
    serialize_type: SerializeType = JSON
    received_ext: Header | msgspec.Raw = msgspec.Raw()
    json_header: bytes = b""

    @classmethod
    def request(cls, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        ext = to_ext_fields(header) if header else None
        return cls(code, ext, body, opaque=next_opaque(), language=LANGUAGE, version=VERSION)

    @classmethod
    def oneway(cls, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        command = cls.request(code, header, body)
        command.flag = FLAG_ONEWAY
        return command

    def response(
        self, code: int, header: Header | None = None, body: bytes = b"", remark: str | None = None
    ) -> RemotingCommand:
        return RemotingCommand(
            code,
            to_ext_fields(header) if header else None,
            body,
            FLAG_RESPONSE,
            self.opaque,
            remark,
            LANGUAGE,
            VERSION,
            self.serialize_type,
        )

    def without_content(self) -> RemotingCommand:
        """Return this request without ext fields and body, to hold for `response`."""
        return RemotingCommand(
            self.code,
            {},
            flag=self.flag,
            opaque=self.opaque,
            language=self.language,
            serialize_type=self.serialize_type,
        )

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def ext_fields(self) -> dict[str, str]:
        """The ext fields as text, as Java prints numbers and booleans, without nulls."""
        if self.ext is None:
            received = self.received_ext
            if isinstance(received, Header):  # lacks undeclared fields: decode the header again
                received = _decode_json_header(self.json_header).ext
            text = str(received, "utf-8", "replace")
            self.ext = _to_texts(fastjson.loads(text, MAX_TOLERANT_HEADER)) if received else {}
        return self.ext

    @property
    def signed_fields(self) -> dict[str, str]:
        """Like `ext_fields`, in one pass for JSON, and not cached, so that `decode_header` keeps its typed header."""
        if self.ext is not None:
            return self.ext
        try:
            return _decode_signed_fields(self.json_header).ext
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            fields = self.ext_fields  # numbers, nulls, or not standard JSON
            self.ext = None
            return fields

    def decode_header(self, header_type: type[H]) -> H:
        """Return the typed header; unknown fields are ignored. RemoteProtocolError names a malformed field."""
        if self.ext is None:
            received = self.received_ext
            # 1. The whole header was already decoded with this type.
            if received.__class__ is header_type:
                return received
            # 2. Raw ext fields; later requests of this code go the first way.
            if received and isinstance(received, msgspec.Raw):
                decode = _ext_decoders.get(header_type)
                if decode is None:
                    decode = _ext_decoders[header_type] = _decoder(header_type)
                try:
                    header: H = decode(received)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    pass  # nulls, mixed-up texts and numbers, invalid UTF-8: the slow path decodes it or raises
                else:
                    if not self.is_response:
                        _register_header_type(self.code, header_type)
                    return header
        try:
            # 3. All others as texts, which also finds the field to name in an error.
            return msgspec.convert(self.ext_fields, header_type, strict=False)
        except msgspec.ValidationError as error:
            command = f"an answer with code {self.code}" if self.is_response else name_of(self.code)
            raise RemoteProtocolError(f"header of {command}: {error}{_meaning(header_type, str(error))}") from None

    def encode(self) -> bytes:
        header = self._encode_json_header() if self.serialize_type is JSON else self._encode_rocketmq_header()
        size = len(header)
        prefix = _PREFIX.pack(4 + size + len(self.body), self.serialize_type << 24 | size)
        return b"".join((prefix, header, self.body))

    def _encode_json_header(self) -> bytes:
        fields: dict[str, Any] = {"code": self.code}
        if ext := self.ext_fields:
            fields["extFields"] = ext
        fields["flag"] = self.flag
        fields["language"] = self.language
        fields["opaque"] = self.opaque
        if self.remark is not None:
            fields["remark"] = self.remark
        fields["serializeTypeCurrentRPC"] = "JSON"
        fields["version"] = self.version
        return _encode_json(fields)

    def _encode_rocketmq_header(self) -> bytes:
        remark = (self.remark or "").encode("utf-8")
        pairs: list[bytes] = []
        for key, value in self.ext_fields.items():
            name, text = key.encode("utf-8"), value.encode("utf-8")
            if len(name) > MAX_ROCKETMQ_KEY:
                raise RemoteProtocolError(
                    f"ROCKETMQ header: the name of an ext field has {len(name)} bytes; the limit is {MAX_ROCKETMQ_KEY}"
                )
            pairs += (_KEY_SIZE.pack(len(name)), name, _SIZE.pack(len(text)), text)
        ext = b"".join(pairs)
        language = LanguageCode.__members__.get(self.language, LanguageCode.OTHER)
        head = BINARY_HEAD.pack(self.code, language, self.version, self.opaque, self.flag)
        return b"".join((head, _SIZE.pack(len(remark)), remark, _SIZE.pack(len(ext)), ext))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemotingCommand):
            return NotImplemented
        return self._identity() == other._identity()

    __hash__ = None  # type: ignore[assignment]

    def _identity(self) -> tuple[object, ...]:
        return (
            self.code,
            self.flag,
            self.opaque,
            self.remark or None,
            self.language,
            self.version,
            self.serialize_type,
            self.ext_fields,
            self.body,
        )

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "oneway" if self.is_oneway else "request"
        return (
            f"<RemotingCommand {kind} code={self.code} opaque={self.opaque} ext={self.ext_fields} "
            f"remark={self.remark!r} body={len(self.body)} bytes>"
        )


class UnreadableCommand(RemotingCommand):
    """A complete frame with an unreadable header (`why`). Cannot be answered without `opaque_is_known`."""

    why: str = ""
    is_answer: bool = False
    opaque_is_known: bool = False


def unreadable(error: HeaderError, serializer: int) -> UnreadableCommand:
    return UnreadableCommand(
        UNREADABLE,
        flag=error.flag & FLAG_ONEWAY,
        opaque=error.opaque or 0,
        serialize_type=ROCKETMQ if serializer == ROCKETMQ else JSON,
        why=str(error),
        is_answer=bool(error.flag & FLAG_RESPONSE),
        opaque_is_known=error.opaque is not None,
    )


def version_text(version: int) -> str:
    """Return `V4_9_8` for VERSION, the number for any other version."""
    return VERSION_TEXT if version == VERSION else str(version)


def next_opaque() -> int:
    """Return an opaque that is unique in this process until it wraps at 2^31."""
    return next(_opaques) & 0x7FFFFFFF


def to_ext_fields(header: Header) -> dict[str, str]:
    """Return a typed header's fields as text, without None."""
    return {
        name: value if value.__class__ is str else _java_text(value)
        for name, value in msgspec.to_builtins(header).items()
        if value is not None
    }


def is_true(value: bool | str | None) -> bool:
    """Parse a boolean ext field as Java does: only `true`, in any case, not "1"."""
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _to_texts(fields: Any) -> dict[str, str]:
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"extFields must be an object, not {type(fields).__name__}")
    return {
        str(name): value if value.__class__ is str else _java_text(value)
        for name, value in fields.items()
        if value is not None
    }


def _java_text(value: Any) -> str:
    if value.__class__ is int:
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return fastjson.dumps(value).decode("utf-8") if isinstance(value, (dict, list)) else str(value)


_NO_EXT: Any = msgspec.Raw()


class _JsonHeader(msgspec.Struct, Generic[E], gc=False):
    """A JSON header. Fields in the order of most clients, which msgspec decodes fastest."""

    code: Int32 = 0
    ext: E = msgspec.field(name="extFields", default=_NO_EXT)
    flag: Int32 = 0
    language: str = LanguageCode.OTHER.name
    opaque: Int32 = 0
    remark: str | None = None
    version: Int32 = 0


def _decoder(of: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    return msgspec.json.Decoder(of, strict=False).decode


_ext_decoders: dict[type[Header], Callable[[msgspec.Raw], Any]] = {}

_decode_json_header: Callable[[bytes], _JsonHeader[msgspec.Raw]] = _decoder(_JsonHeader[msgspec.Raw])


class _SignedFields(msgspec.Struct):
    ext: dict[str, str] = msgspec.field(name="extFields", default_factory=dict)


_decode_signed_fields: Callable[[bytes], _SignedFields] = msgspec.json.Decoder(_SignedFields).decode

_typed_decoders: dict[bytes, Callable[[bytes], _JsonHeader[Any]]] = {}
"""By the bytes of the header before its first comma: `{"code":310`."""

_encode_json = msgspec.json.Encoder().encode
_HEADER_MEMBERS = ("code", "flag", "language", "opaque", "remark", "version")


def _register_header_type(code: int, header_type: type[Header]) -> None:
    begin = b'{"code":%d' % code
    if begin not in _typed_decoders:
        _typed_decoders[begin] = _decoder(_JsonHeader[header_type])  # type: ignore[valid-type]


def _meaning(header_type: type[Header], error: str) -> str:
    """Return `, the queue id` for "Expected `int`, got `str` - at `$.e`" of a SendMessageRequestHeaderV2."""
    for name, on_wire in zip(header_type.__struct_fields__, header_type.__struct_encode_fields__, strict=True):
        if len(on_wire) == 1 and error.endswith((f"`{on_wire}`", f"`$.{on_wire}`")):
            return f", the {name.replace('_', ' ')}"
    return ""


def decode_command(header: bytes, body: bytes, serializer: int) -> RemotingCommand:
    """Decode a frame. HeaderError if the header is unreadable."""
    if serializer == 0:
        try:
            return decode_plain_json(header, body)
        except NotPlainJson:
            return decode_tolerantly(header, body)
    if serializer == 1:
        return _decode_rocketmq(header, body)
    raise HeaderError(f"serializer {serializer} is unknown: 0 is JSON, 1 is ROCKETMQ")


class NotPlainJson(Exception):
    """A JSON header for `decode_tolerantly`, which is a hundred times slower than msgspec."""


def decode_plain_json(header: bytes, body: bytes) -> RemotingCommand:
    """Decode a frame with a plain JSON header. NotPlainJson or HeaderError for any other."""
    try:
        fields = _typed_decoders.get(header[: header.find(b",")], _decode_json_header)(header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            fields = _decode_json_header(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise NotPlainJson from None
    if len(header) > MAX_TOLERANT_HEADER:
        members_of_long(header)  # raises if a limit is exceeded
    return RemotingCommand(
        fields.code, None, body, fields.flag, fields.opaque, fields.remark, fields.language, fields.version, JSON,
        fields.ext, header,
    )  # fmt: skip


def decode_tolerantly(header: bytes, body: bytes) -> RemotingCommand:
    """Decode a frame whose JSON header is not plain. HeaderError if it is unreadable."""
    fields = _decode_leniently(header)
    return RemotingCommand(
        fields.code, None, body, fields.flag, fields.opaque, fields.remark, fields.language, fields.version, JSON,
        fields.ext, header,
    )  # fmt: skip


def _decode_leniently(header: bytes) -> _JsonHeader[msgspec.Raw]:
    try:
        if len(header) > MAX_TOLERANT_HEADER:
            members = members_of_long(header)
            ext_fields = str(_encode_json(members["extFields"]), "utf-8", "replace")
            members["extFields"] = fastjson.loads(ext_fields, MAX_TOLERANT_HEADER)
        else:
            members = fastjson.loads(str(header, "utf-8", "replace"))
    except HeaderError:
        raise
    except RemoteProtocolError as error:
        raise HeaderError(str(error)) from None
    if not isinstance(members, dict):
        raise HeaderError("a header must be a JSON object")
    fields = {name: members[name] for name in _HEADER_MEMBERS if members.get(name) is not None}
    if not isinstance(language := fields.get("language", ""), str):
        fields["language"] = _language_name(language)
    if not isinstance(fields.get("remark", ""), str):
        fields["remark"] = _java_text(fields["remark"])
    opaque, flag = (_int32(members.get(name)) for name in ("opaque", "flag"))
    try:
        ext = msgspec.Raw(_encode_json(_to_texts(members.get("extFields"))))
        return msgspec.convert(fields | {"extFields": ext}, _JsonHeader[msgspec.Raw], strict=False)
    except (RemoteProtocolError, msgspec.ValidationError) as error:
        raise HeaderError(f"JSON header: {error}", opaque, flag or 0) from None


def _int32(value: object) -> int | None:
    with suppress(msgspec.ValidationError):
        return msgspec.convert(value, Int32, strict=False)
    return None


def _language_name(number: object) -> str:
    return _LANGUAGES.get(number, LanguageCode.OTHER).name if isinstance(number, int) else LanguageCode.OTHER.name


def _decode_rocketmq(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = BINARY_HEAD.unpack_from(header, 0)
    except struct_error:
        raise HeaderError(f"ROCKETMQ header: it ends in the middle of a field ({len(header)} bytes)") from None
    try:
        remark, at = _read_text(header, BINARY_HEAD.size, _SIZE)
        (ext_size,) = _SIZE.unpack_from(header, at)
        at += 4
        end = at + ext_size
        if end > len(header):
            raise RemoteProtocolError(f"ROCKETMQ header: {ext_size} bytes of ext fields at byte {at} of {len(header)}")
        ext: dict[str, str] = {}
        count = 0
        while at < end:
            if (count := count + 1) > MAX_EXT_FIELDS:
                raise RemoteProtocolError(f"ROCKETMQ header: {too_many_fields(count)}")
            key, at = _read_text(header, at, _KEY_SIZE)
            ext[key], at = _read_text(header, at, _SIZE)
    except struct_error:
        why = f"ROCKETMQ header: it ends in the middle of a field ({len(header)} bytes)"
        raise HeaderError(why, opaque, flag) from None
    except RemoteProtocolError as error:
        raise HeaderError(str(error), opaque, flag) from None
    return RemotingCommand(
        code,
        ext,
        body,
        flag=flag,
        opaque=opaque,
        remark=remark or None,
        language=_language_name(language),
        version=version,
        serialize_type=ROCKETMQ,
    )


_LANGUAGES = {int(language): language for language in LanguageCode}


def _read_text(header: bytes, at: int, size_field: Struct) -> tuple[str, int]:
    """Return the text at `at`, preceded by its size, and the position after it."""
    (size,) = size_field.unpack_from(header, at)
    at += size_field.size
    if size < 0 or at + size > len(header):
        raise RemoteProtocolError(f"ROCKETMQ header: {size} bytes of text at byte {at} of {len(header)}")
    return str(header[at : at + size], "utf-8", "replace"), at + size
