"""RemotingCommand: one request or one answer, and its bytes in both header serializations.

A frame on the wire:

    +----------------+---------------------------+-----------------+-------------+
    | length (4)     | serializer (1) | size (3) | header (size)   | body        |
    +----------------+---------------------------+-----------------+-------------+

`length` does not count itself; all integers are big-endian. The serializer byte is 0 for a JSON header and 1
for the binary one named ROCKETMQ. An answer uses the serializer of its request.

JSON header, members in any order; `extFields` holds the typed header of the subject as text:

    {"code":310,"extFields":{"a":"group","e":"3"},"flag":0,"language":"JAVA","opaque":7,
     "serializeTypeCurrentRPC":"JSON","version":409}

ROCKETMQ header:

    code (2) | language (1) | version (2) | opaque (4) | flag (4) |
    remark size (4) + remark | ext size (4) + { key size (2) + key | value size (4) + value } ...

Facts that bite: values in `extFields` of requests may be strings, numbers or booleans, by client and by field, so
every typed header is read in lax mode; in answers they must be strings, because C++ clients ignore anything else.
`flag` bit 0 marks an answer, bit 1 a one-way request.

The ext fields of a JSON header stay raw until `decode_header` reads them into the typed struct of their subject, or
`ext_fields` into a dictionary. Requests of one code have headers of one type: once the first has been read, those that
follow are decoded in one pass, their typed headers included.

Decoding is as tolerant as Apache's: a code that is missing is 0, the language may be a name or a number, invalid UTF-8
becomes U+FFFD, and a negative size of the ext fields means that there are none.

Answers to `RemotingCommand`, `RemotingSerializable` and `RocketMQSerializable` of Apache RocketMQ 4.9.8.
Deliberate differences: a missing or malformed field is named in the error, by its meaning too if it is one letter on
the wire, instead of surfacing as a Java exception; a header that cannot be read is answered if its opaque can be, where
Apache closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from itertools import count
from struct import Struct
from struct import error as struct_error
from typing import Annotated, Any, Generic, TypeVar

import msgspec

from rucola import fastjson
from rucola.errors import RemoteProtocolError
from rucola.message.properties import is_true as is_true
from rucola.protocol.codes import LanguageCode, name_of
from rucola.protocol.version import VERSION as VERSION
from rucola.protocol.version import VERSION_TEXT as VERSION_TEXT

LANGUAGE = LanguageCode.PYTHON.name
"""What commands made here say of their maker."""

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2

UNREADABLE = -1
"""The code of a command whose header cannot be read."""

_PREFIX = Struct(">iI")
_BINARY_HEAD = Struct(">hBhii")
_SIZE = Struct(">i")
_KEY_SIZE = Struct(">h")

_opaques = count(1)


class SerializeType(IntEnum):
    """How the header of a frame is written."""

    JSON = 0
    ROCKETMQ = 1


# Taking a member from its class costs a tenth of a microsecond in CPython 3.11, taking a global a quarter of that.
JSON = SerializeType.JSON
ROCKETMQ = SerializeType.ROCKETMQ


class Header(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Base of every typed header: a struct whose fields are the `extFields`, camelCase on the wire.

    A field without a default must be there; None is not sent.
    """


H = TypeVar("H", bound=Header)
E = TypeVar("E")

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]


class HeaderError(RemoteProtocolError):
    """A header that cannot be read, with the members of it that can be."""

    def __init__(self, why: str, opaque: int | None = None, flag: int = 0) -> None:
        self.opaque = opaque
        self.flag = flag
        super().__init__(why)


class RemotingCommand(msgspec.Struct, eq=False, gc=False):
    """One request or answer.

    `code` is a RequestCode in a request and a ResponseCode in an answer; `opaque` pairs the two. `ext` is what
    `ext_fields` starts from. `body` owns its bytes. `serialize_type` tells how the header came or shall go.

    Where that was in JSON, `json` is the whole header, and `came` its ext fields as they were decoded with it: a typed
    header, or their raw JSON.
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
    came: Header | msgspec.Raw = msgspec.Raw()
    json: bytes = b""

    @classmethod
    def request(cls, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """A new request with an opaque of its own."""
        ext = to_ext_fields(header) if header else None
        return cls(code, ext, body, opaque=next_opaque(), language=LANGUAGE, version=VERSION)

    @classmethod
    def oneway(cls, code: int, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """A new request that wants no answer."""
        command = cls.request(code, header, body)
        command.flag = FLAG_ONEWAY
        return command

    def response(
        self, code: int, header: Header | None = None, body: bytes = b"", remark: str | None = None
    ) -> RemotingCommand:
        """The answer to this request: same opaque, same serialization."""
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

    @property
    def is_response(self) -> bool:
        return bool(self.flag & FLAG_RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & FLAG_ONEWAY)

    @property
    def ext_fields(self) -> dict[str, str]:
        """The ext fields as text; numbers and booleans as Java would print them, nulls left out."""
        if self.ext is None:
            came = self.came
            if isinstance(came, Header):  # which has only the fields that its type knows
                came = _decode_raw(self.json).ext
            self.ext = _texts(fastjson.loads(str(came, "utf-8", "replace"))) if came else {}
        return self.ext

    def decode_header(self, header_type: type[H]) -> H:
        """The ext fields as a typed header; unknown fields are ignored.

        RemoteProtocolError names the field that is missing or cannot be read.
        """
        if self.ext is None:
            came = self.came
            if came.__class__ is header_type:
                return came
            if came and isinstance(came, msgspec.Raw):
                decode = _decode_ext.get(header_type)
                if decode is None:
                    decode = _decode_ext[header_type] = _decoder(header_type)
                try:
                    header: H = decode(came)
                except (msgspec.MsgspecError, UnicodeDecodeError):
                    pass  # nulls, text and numbers in each other's place, no UTF-8: the slow way reads it or says why
                else:
                    if not self.is_response:
                        _know(self.code, header_type)
                    return header
        try:
            return msgspec.convert(self.ext_fields, header_type, strict=False)
        except msgspec.ValidationError as error:
            whose = f"an answer with code {self.code}" if self.is_response else name_of(self.code)
            raise RemoteProtocolError(f"header of {whose}: {error}{_meaning(header_type, str(error))}") from None

    def encode(self) -> bytes:
        """The whole frame, length prefix included."""
        header = self._json() if self.serialize_type is JSON else self._binary()
        size = len(header)
        prefix = _PREFIX.pack(4 + size + len(self.body), self.serialize_type << 24 | size)
        return b"".join((prefix, header, self.body))

    def _json(self) -> bytes:
        fields: dict[str, Any] = {"code": self.code}
        if self.ext_fields:
            fields["extFields"] = self.ext_fields
        fields["flag"] = self.flag
        fields["language"] = self.language
        fields["opaque"] = self.opaque
        if self.remark is not None:
            fields["remark"] = self.remark
        fields["serializeTypeCurrentRPC"] = "JSON"
        fields["version"] = self.version
        return _encode_json(fields)

    def _binary(self) -> bytes:
        remark = (self.remark or "").encode("utf-8")
        pairs: list[bytes] = []
        for key, value in self.ext_fields.items():
            name, text = key.encode("utf-8"), value.encode("utf-8")
            pairs += (_KEY_SIZE.pack(len(name)), name, _SIZE.pack(len(text)), text)
        ext = b"".join(pairs)
        language = LanguageCode.__members__.get(self.language, LanguageCode.OTHER)
        head = _BINARY_HEAD.pack(self.code, language, self.version, self.opaque, self.flag)
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
    """A whole frame whose header cannot be read, and why. No processor has its code.

    `is_answer` says that it would have been an answer. A request without `opaque_is_known` cannot be answered.
    """

    why: str = ""
    is_answer: bool = False
    opaque_is_known: bool = False


def unreadable(error: HeaderError, serializer: int) -> UnreadableCommand:
    """The command that stands for a header that could not be read."""
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
    """`V4_9_8` for the version number that is spoken here, the number itself for any other."""
    return VERSION_TEXT if version == VERSION else str(version)


def next_opaque() -> int:
    """A number for a new request, unique within this process until it wraps at 2^31."""
    return next(_opaques) & 0x7FFFFFFF


def to_ext_fields(header: Header) -> dict[str, str]:
    """A typed header as ext fields: every value as text, None left out."""
    return {
        name: value if value.__class__ is str else _text_of(value)
        for name, value in msgspec.to_builtins(header).items()
        if value is not None
    }


def _texts(fields: Any) -> dict[str, str]:
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise RemoteProtocolError(f"extFields must be an object, not {type(fields).__name__}")
    return {
        str(name): value if value.__class__ is str else _text_of(value)
        for name, value in fields.items()
        if value is not None
    }


def _text_of(value: Any) -> str:
    if value.__class__ is int:
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return fastjson.dumps(value).decode("utf-8") if isinstance(value, (dict, list)) else str(value)


_NO_EXT: Any = msgspec.Raw()


class _JsonHeader(msgspec.Struct, Generic[E], gc=False):
    """A JSON header, its fields in the order in which most clients write them. Its ext fields are an E, if any."""

    code: Int32 = 0
    ext: E = msgspec.field(name="extFields", default=_NO_EXT)
    flag: Int32 = 0
    language: str = LanguageCode.OTHER.name
    opaque: Int32 = 0
    remark: str | None = None
    version: Int32 = 0


def _decoder(of: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    return msgspec.json.Decoder(of, strict=False).decode


_decode_ext: dict[type[Header], Callable[[msgspec.Raw], Any]] = {}
"""For the ext fields alone, by the type that they become."""

_decode_raw: Callable[[bytes], _JsonHeader[msgspec.Raw]] = _decoder(_JsonHeader[msgspec.Raw])
_decode_whole: dict[bytes, Callable[[bytes], _JsonHeader[Any]]] = {}
"""For whole headers of requests whose type is known, by how such a header begins: `{"code":310,`."""

_BEGIN_SIZE = len(b'{"code":310,')

_encode_json = msgspec.json.Encoder().encode
_HEADER_MEMBERS = ("code", "flag", "language", "opaque", "remark", "version")


def _know(code: int, header_type: type[Header]) -> None:
    """From now on decode requests of this code in one pass with ext fields of this type."""
    begin = (b'{"code":%d,"' % code)[:_BEGIN_SIZE]
    if begin not in _decode_whole:
        _decode_whole[begin] = _decoder(_JsonHeader[header_type])  # type: ignore[valid-type]


def _meaning(header_type: type[Header], error: str) -> str:
    """What the field that an error names means, where its name on the wire does not tell."""
    for name, on_wire in zip(header_type.__struct_fields__, header_type.__struct_encode_fields__, strict=True):
        if len(on_wire) == 1 and error.endswith((f"`{on_wire}`", f"`$.{on_wire}`")):
            return f", the {name.replace('_', ' ')}"
    return ""


def decode_command(header: bytes, body: bytes, serializer: int) -> RemotingCommand:
    """The command of one frame, given its header bytes, its body and its serializer byte. Raises HeaderError."""
    if serializer == 0:
        try:
            came = _decode_whole.get(header[:_BEGIN_SIZE], _decode_raw)(header)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            came = _tolerantly(header)
        return RemotingCommand(
            came.code,
            None,
            body,
            came.flag,
            came.opaque,
            came.remark,
            came.language,
            came.version,
            JSON,
            came.ext,
            header,
        )
    if serializer == 1:
        return _from_binary(header, body)
    raise HeaderError(f"serializer {serializer} is unknown: 0 is JSON, 1 is ROCKETMQ")


def _tolerantly(header: bytes) -> _JsonHeader[msgspec.Raw]:
    """A header whose ext fields are not what others of its code have, or that is JSON only to fastjson."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_raw(header)
    try:
        members = fastjson.loads(str(header, "utf-8", "replace"))
    except RemoteProtocolError as error:
        raise HeaderError(str(error)) from None
    if not isinstance(members, dict):
        raise HeaderError("a header must be a JSON object")
    fields = {name: members[name] for name in _HEADER_MEMBERS if members.get(name) is not None}
    if not isinstance(language := fields.get("language", ""), str):
        fields["language"] = _language(language)
    if not isinstance(fields.get("remark", ""), str):
        fields["remark"] = _text_of(fields["remark"])
    opaque, flag = (_int32(members.get(name)) for name in ("opaque", "flag"))
    try:
        ext = msgspec.Raw(_encode_json(_texts(members.get("extFields"))))
        return msgspec.convert(fields | {"extFields": ext}, _JsonHeader[msgspec.Raw], strict=False)
    except (RemoteProtocolError, msgspec.ValidationError) as error:
        raise HeaderError(f"JSON header: {error}", opaque, flag or 0) from None


def _int32(value: object) -> int | None:
    """The number that a member is, as lax decoding takes it; None if it is none."""
    with suppress(msgspec.ValidationError):
        return msgspec.convert(value, Int32, strict=False)
    return None


def _language(number: object) -> str:
    return _LANGUAGES.get(number, LanguageCode.OTHER).name if isinstance(number, int) else LanguageCode.OTHER.name


def _from_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = _BINARY_HEAD.unpack_from(header, 0)
    except struct_error:
        raise HeaderError(f"ROCKETMQ header: it ends in the middle of a field ({len(header)} bytes)") from None
    try:
        remark, at = _text(header, _BINARY_HEAD.size, _SIZE)
        (ext_size,) = _SIZE.unpack_from(header, at)
        at += 4
        end = at + ext_size
        if end > len(header):
            raise RemoteProtocolError(f"ROCKETMQ header: {ext_size} bytes of ext fields at byte {at} of {len(header)}")
        ext: dict[str, str] = {}
        while at < end:
            key, at = _text(header, at, _KEY_SIZE)
            ext[key], at = _text(header, at, _SIZE)
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
        language=_language(language),
        version=version,
        serialize_type=ROCKETMQ,
    )


_LANGUAGES = {int(language): language for language in LanguageCode}


def _text(header: bytes, at: int, size_field: Struct) -> tuple[str, int]:
    """The sized text at `at`, and the position behind it."""
    (size,) = size_field.unpack_from(header, at)
    at += size_field.size
    if size < 0 or at + size > len(header):
        raise RemoteProtocolError(f"ROCKETMQ header: {size} bytes of text at byte {at} of {len(header)}")
    return str(header[at : at + size], "utf-8", "replace"), at + size
