"""Routes: the brokers and queues of topics, and the registration of brokers.

Codes 103 to 106, 205, 206, 216, 224, 304, 322 and 327. A route has the addresses of a topic's brokers by broker id (0
is the master), and their numbers of queues. Apache's name server quotes broker ids for newer clients only; every client
accepts both.

A registration contains all topics of the broker, as JSON or, if `compressed`, as one zlib stream:

    size (4) + data version as JSON | number of topics (4) |
    { size (4) + `name readQueueNums writeQueueNums perm topicFilterType` } ... | size (4) + filter servers as JSON

Corresponds to `RouteInfoManager`'s serialized classes and to `RegisterBrokerBody` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Generator, Mapping
from struct import Struct
from struct import error as struct_error

import msgspec

from rucola import fastjson, slices
from rucola.domain.route import RegisterBrokerBody
from rucola.domain.topic import MAX_NAME_LENGTH, DataVersion, TopicConfig, TopicConfigSerializeWrapper
from rucola.errors import RemoteProtocolError
from rucola.message.properties import is_true
from rucola.protocol.body import Body, decode_body, decode_request, decode_strictly, encode_body
from rucola.protocol.command import Header

MAX_REGISTRATION_SIZE = 16 * 1024 * 1024
"""Bytes of a decompressed registration: 100,000 topics with the longest names."""
COMPRESS_ABOVE = 1024 * 1024
"""Bytes above which a broker compresses its registration, to fit into a frame."""
_MAX_NULLS_SIZE = 1024 * 1024
"""Bytes up to which a registration may have nulls for topics' settings, which are slow to decode."""

MAX_TOPIC_SIZE = 64 * 1024
"""Bytes of JSON of one topic of a large registration, and of its filter servers."""
_PIECE_SIZE = MAX_TOPIC_SIZE
_SIZE = Struct(">i")
_LEVEL = 9
"""The level of Apache's brokers."""


def vip_port(listen_port: int) -> int:
    """Return the port of a broker's VIP channel."""
    return listen_port - 2


class TopicList(Body, kw_only=True):
    broker_addr: str | None = None
    topic_list: list[str] = []


def encode_topic_list(topics: list[str], broker_addr: str | None = None) -> bytes:
    """`encode_body` of a TopicList, forty times as fast: there may be 100,000 topics."""
    encoded = msgspec.json.encode(topics)
    if broker_addr is None:
        return b'{"topicList":%b}' % encoded
    return b'{"brokerAddr":%b,"topicList":%b}' % (msgspec.json.encode(broker_addr), encoded)


class GetRouteInfoRequestHeader(Header, kw_only=True):
    """`accept_standard_json_only` requests quoted broker ids."""

    topic: str
    accept_standard_json_only: bool | str | None = None


class DeleteTopicFromNamesrvRequestHeader(Header, kw_only=True):
    topic: str
    cluster_name: str | None = None


class GetTopicsByClusterRequestHeader(Header, kw_only=True):
    cluster: str


class WritePermOfBrokerRequestHeader(Header, kw_only=True):
    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True):
    wipe_topic_count: int


class AddWritePermOfBrokerResponseHeader(Header, kw_only=True):
    add_topic_count: int


class BrokerRequestHeader(Header, kw_only=True):
    """UNREGISTER_BROKER and QUERY_DATA_VERSION: the sending broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int
    # Rucola's: the epoch that a broker will start as master; other name servers ignore it.
    master_epoch: int | None = None


class RegisterBrokerRequestHeader(Header, kw_only=True):
    """`body_crc32` is the CRC-32 of the body as sent, `compressed` marks a zlib stream."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    # "host:port" of the replication service.
    ha_server_addr: str = ""
    broker_id: int
    compressed: bool | str = "false"
    body_crc32: int = 0
    # Rucola's: the epoch of a master, which Rucola's name servers compare within the broker name.
    master_epoch: int | None = None


class RegisterBrokerResponseHeader(Header, kw_only=True):
    """A slave's response has its master's addresses for replication and for clients."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class QueryDataVersionResponseHeader(Header, kw_only=True):
    """Whether the broker must send its topics again."""

    changed: bool
    # Rucola's, if the request has an epoch: the newest registered master's.
    master_epoch: int | None = None
    master_addr: str | None = None


def encode_registration(body: RegisterBrokerBody, *, compress: bool = False) -> bytes:
    """Encode a registration. Compressed, it lacks `topic_sys_flag` and `order`, like Apache's."""
    return slices.run(compression_steps(body)) if compress else encode_body(body)


def compression_steps(body: RegisterBrokerBody) -> Generator[None, None, bytes]:
    """Encode a compressed registration in small steps (see `rucola.slices`)."""
    deflater = zlib.compressobj(_LEVEL)
    # A snapshot: topics may be created between two steps.
    topics = body.topic_config_serialize_wrapper
    table = list(topics.topic_config_table.values())
    parts = [deflater.compress(_sized(encode_body(topics.data_version)) + _SIZE.pack(len(table)))]
    for topic in table:
        fields = (topic.topic_name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_filter_type)
        parts.append(deflater.compress(_sized(" ".join(map(str, fields)).encode("utf-8"))))
        yield
    parts += (deflater.compress(_sized(fastjson.dumps(body.filter_server_list))), deflater.flush())
    return b"".join(parts)


def digest_steps(data: bytes) -> Generator[None, None, bytes]:
    """Compute a digest of a registration's body in small steps: equal ones need not be decoded."""
    digest = hashlib.blake2b(digest_size=16)
    for begin in range(0, len(data), _PIECE_SIZE):
        digest.update(data[begin : begin + _PIECE_SIZE])
        yield
    return digest.digest()


def registration_steps(
    header: RegisterBrokerRequestHeader, data: bytes, max_topics: int = 100_000
) -> Generator[None, None, RegisterBrokerBody]:
    """Decode in small steps; empty data has no topics. RemoteProtocolError if malformed, or above `max_topics`."""
    if header.body_crc32:
        crc = 0
        for begin in range(0, len(data), _PIECE_SIZE):
            crc = zlib.crc32(data[begin : begin + _PIECE_SIZE], crc)
            yield
        if (header.body_crc32 ^ crc) & 0x7FFFFFFF:
            raise RemoteProtocolError("crc32 not match")
    if not data:
        return RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigSerializeWrapper())
    if is_true(header.compressed):
        plain = yield from _inflate(data)
        return (yield from _decode_lines(plain, max_topics))
    if len(data) > _MAX_NULLS_SIZE:
        return (yield from _decode_large(data, max_topics))
    body = decode_request(RegisterBrokerBody, data, _MAX_NULLS_SIZE)
    table = body.topic_config_serialize_wrapper.topic_config_table
    _check_count(len(table), max_topics)
    _check_names(table)
    return body


def _check_count(count: int, max_topics: int) -> None:
    if not 0 <= count <= max_topics:
        raise RemoteProtocolError(f"a registration with {count} topics; the limit is {max_topics} (maxTopicsPerBroker)")


def _check_names(topics: Mapping[str, TopicConfig]) -> None:
    longest = max((len(topic.topic_name) for topic in topics.values()), default=0)
    if longest > MAX_NAME_LENGTH:
        raise RemoteProtocolError(
            f"a registration of a topic whose name has {longest} characters; the limit is {MAX_NAME_LENGTH}"
        )


def _filter_servers(data: bytes) -> list[str]:
    if len(data) > MAX_TOPIC_SIZE:
        raise RemoteProtocolError(
            f"a registration with {len(data)} bytes of filter servers; the limit is {MAX_TOPIC_SIZE}"
        )
    servers: list[str] = fastjson.loads(data, fastjson.MAX_TOLERANT_SIZE) or []
    return servers


# JSON.


class _Topics(Body, kw_only=True):
    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")


class _Registration(Body, kw_only=True):
    """`RegisterBrokerBody` with its long parts undecoded, which takes a tenth of the time."""

    filter_server_list: msgspec.Raw = msgspec.Raw(b"[]")
    topic_config_serialize_wrapper: _Topics


_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb"\{(?:[^{}\"]++|%b)*+\}" % _STRING
"""An object without inner objects, such as `attributes` of RocketMQ 5."""
_MEMBER = rb"\s*+%b\s*+:\s*+\{(?:[^{}\"]++|%b|%b)*+\}\s*+,?+" % (_STRING, _STRING, _FLAT)
_MEMBERS = re.compile(rb"(?:%b){1,64}+" % _MEMBER, re.DOTALL)
"""Some members of a table of topics, known to be well-formed JSON."""
_table_decoder = msgspec.json.Decoder(dict[str, TopicConfig], strict=False)


def _decode_large(data: bytes, max_topics: int) -> Generator[None, None, RegisterBrokerBody]:
    """Decode some topics at a time: 100,000 at once take 50 ms."""
    whole = decode_strictly(_Registration, data)
    yield
    encoded = bytes(whole.topic_config_serialize_wrapper.topic_config_table)
    table: dict[str, TopicConfig] = {}
    position = 1
    while members := _MEMBERS.match(encoded, position, position + _PIECE_SIZE):
        part = members[0].rstrip().removesuffix(b",")
        try:
            topics = _table_decoder.decode(b"{%b}" % part)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"topicConfigTable at byte {position}: {error}") from None
        _check_names(topics)
        table |= topics
        _check_count(len(table), max_topics)
        position = members.end()
        yield
    if encoded[:1] != b"{" or encoded[position:].strip() != b"}":
        raise RemoteProtocolError(f"topicConfigTable at byte {position}: no topic of at most {MAX_TOPIC_SIZE} bytes")
    wrapper = TopicConfigSerializeWrapper(
        data_version=whole.topic_config_serialize_wrapper.data_version, topic_config_table=table
    )
    servers = _filter_servers(bytes(whole.filter_server_list))
    return RegisterBrokerBody(filter_server_list=servers, topic_config_serialize_wrapper=wrapper)


# Compressed.


def _inflate(data: bytes) -> Generator[None, None, bytes]:
    inflater = zlib.decompressobj()
    plain = bytearray()
    try:
        for begin in range(0, len(data), _PIECE_SIZE):
            left = MAX_REGISTRATION_SIZE - len(plain)
            plain += inflater.decompress(data[begin : begin + _PIECE_SIZE], left + 1)
            if len(plain) > MAX_REGISTRATION_SIZE:
                raise RemoteProtocolError(f"compressed registration: more than {MAX_REGISTRATION_SIZE} bytes")
            yield
    except zlib.error as error:
        raise RemoteProtocolError(f"compressed registration: {error}") from None
    if not inflater.eof:
        raise RemoteProtocolError("compressed registration: the stream has no end")
    return bytes(plain)


def _decode_lines(plain: bytes, max_topics: int) -> Generator[None, None, RegisterBrokerBody]:
    try:
        version, at = _part(plain, 0)
        (count,) = _SIZE.unpack_from(plain, at)
        at += _SIZE.size
        _check_count(count, max_topics)
        table: dict[str, TopicConfig] = {}
        for _ in range(count):
            yield
            line, at = _part(plain, at)
            name, read_queues, write_queues, perm, filter_type = line.decode("utf-8").split(" ")
            topic = table[name] = TopicConfig(
                topic_name=name,
                read_queue_nums=int(read_queues),
                write_queue_nums=int(write_queues),
                perm=int(perm),
                topic_filter_type=filter_type,
            )
            _check_names({name: topic})
        servers, _ = _part(plain, at)
    except (struct_error, ValueError) as error:
        raise RemoteProtocolError(f"compressed registration: {error}") from None
    wrapper = TopicConfigSerializeWrapper(data_version=decode_body(DataVersion, version), topic_config_table=table)
    return RegisterBrokerBody(filter_server_list=_filter_servers(servers), topic_config_serialize_wrapper=wrapper)


def _sized(part: bytes) -> bytes:
    return _SIZE.pack(len(part)) + part


def _part(plain: bytes, at: int) -> tuple[bytes, int]:
    """Return the part at `at`, preceded by its size, and the position after it."""
    (size,) = _SIZE.unpack_from(plain, at)
    begin = at + _SIZE.size
    if size < 0 or begin + size > len(plain):
        raise RemoteProtocolError(f"compressed registration: {size} bytes at byte {begin} of {len(plain)}")
    return plain[begin : begin + size], begin + size
