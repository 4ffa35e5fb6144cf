"""Routes: the brokers and queues of topics, and the registration of brokers at name servers.

Codes: REGISTER_BROKER (103), UNREGISTER_BROKER (104), GET_ROUTEINFO_BY_TOPIC (105), GET_BROKER_CLUSTER_INFO (106),
WIPE_WRITE_PERM_OF_BROKER (205), GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206), DELETE_TOPIC_IN_NAMESRV (216),
GET_TOPICS_BY_CLUSTER (224), GET_SYSTEM_TOPIC_LIST_FROM_NS (304), QUERY_DATA_VERSION (322), ADD_WRITE_PERM_OF_BROKER
(327).

A route lists the brokers of a topic with their addresses by broker id (0 is the master), and the number of queues on
each. Apache's name server sends broker ids as quoted keys to newer clients, and without quotes to older ones; every
client accepts both.

A registration contains all topics of the broker, as JSON or, if its header says `compressed`, as one zlib stream:

    size (4) + data version as JSON | number of topics (4) |
    { size (4) + `name readQueueNums writeQueueNums perm topicFilterType` } ... | size (4) + filter servers as JSON

Corresponds to `RouteInfoManager`'s serialized classes and to `RegisterBrokerBody` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Mapping
from struct import Struct
from struct import error as struct_error

import msgspec

from rucola import fastjson, slices
from rucola.errors import RemoteProtocolError
from rucola.message.properties import is_true
from rucola.protocol.body import Body, decode_body, decode_request, decode_strictly, encode_body
from rucola.protocol.command import Header
from rucola.protocol.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper

MASTER_ID = 0
"""The broker id of a master; slaves have greater ones."""
MAX_REGISTRATION_SIZE = 16 * 1024 * 1024
"""Limit of a decompressed registration in bytes: 100,000 topics with the longest names."""
MAX_NAME_LENGTH = 512
"""Limit of the name of a broker, cluster or registered topic in characters; Apache's longest have 262."""
COMPRESS_ABOVE = 1024 * 1024
"""Size in bytes above which a broker compresses its registration, so that it fits into a frame."""
_MAX_NULLS_SIZE = 1024 * 1024
"""Size in bytes up to which a registration may have nulls in place of topics' settings, which are slow to decode."""

MAX_TOPIC_SIZE = 64 * 1024
"""Limit of a single topic of a large registration, and of its filter servers, in bytes of JSON."""
_PIECE_SIZE = MAX_TOPIC_SIZE
"""Size in bytes of the pieces in which a registration is read."""
_SIZE = Struct(">i")
_LEVEL = 9
"""The level of Apache's brokers."""


def vip_port(listen_port: int) -> int:
    """Return the port of a broker's VIP channel, as Apache's clients and slaves compute it."""
    return listen_port - 2


class BrokerData(Body, kw_only=True):
    """One broker name: the addresses of its master and slaves ("host:port") by broker id."""

    # "host:port" by broker id.
    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class QueueData(Body, kw_only=True):
    """A topic's queues on one broker name; `perm` is a sum of PERM_ values."""

    broker_name: str
    perm: int
    read_queue_nums: int
    # Bits TOPIC_FLAG_UNIT and TOPIC_FLAG_UNIT_SUB.
    topic_sys_flag: int = 0
    write_queue_nums: int


class TopicRouteData(Body, kw_only=True):
    """The response body of GET_ROUTEINFO_BY_TOPIC. `order_topic_conf` has the form `broker-a:4;broker-b:4`."""

    broker_datas: list[BrokerData] = []
    # Filter servers by broker address, for filtering by an uploaded class.
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []


class ClusterInfo(Body, kw_only=True):
    """The response body of GET_BROKER_CLUSTER_INFO: brokers by broker name, and broker names by cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class TopicList(Body, kw_only=True):
    """The response body of all requests that list topics."""

    broker_addr: str | None = None
    topic_list: list[str] = []


def encode_topic_list(topics: list[str], broker_addr: str | None = None) -> bytes:
    """Return a TopicList as `encode_body` does, in a fortieth of the time.

    A name server may have 100,000 topics.
    """
    encoded = msgspec.json.encode(topics)
    if broker_addr is None:
        return b'{"topicList":%b}' % encoded
    return b'{"brokerAddr":%b,"topicList":%b}' % (msgspec.json.encode(broker_addr), encoded)


class GetRouteInfoRequestHeader(Header, kw_only=True):
    """GET_ROUTEINFO_BY_TOPIC. `accept_standard_json_only` requests quoted broker ids."""

    topic: str
    accept_standard_json_only: bool | str | None = None


class DeleteTopicFromNamesrvRequestHeader(Header, kw_only=True):
    """DELETE_TOPIC_IN_NAMESRV: delete the route of a topic, for one cluster or for all."""

    topic: str
    cluster_name: str | None = None


class GetTopicsByClusterRequestHeader(Header, kw_only=True):
    """GET_TOPICS_BY_CLUSTER. `cluster` is a cluster name."""

    cluster: str


class WritePermOfBrokerRequestHeader(Header, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """The number of topics whose write permission on the broker was removed."""

    wipe_topic_count: int


class AddWritePermOfBrokerResponseHeader(Header, kw_only=True):
    """The number of topics whose write permission on the broker was restored."""

    add_topic_count: int


class BrokerRequestHeader(Header, kw_only=True):
    """UNREGISTER_BROKER and QUERY_DATA_VERSION: the sending broker."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int
    # Rucola's: the epoch that a broker is about to begin as master; other name servers ignore it.
    master_epoch: int | None = None


class RegisterBrokerRequestHeader(Header, kw_only=True):
    """REGISTER_BROKER: the registration of a broker, and the encoding of its body.

    `body_crc32` is the CRC-32 of the body as sent, `compressed` means that it is a zlib stream.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    # "host:port" of the replication service.
    ha_server_addr: str = ""
    broker_id: int
    compressed: bool | str = "false"
    body_crc32: int = 0
    # Rucola's: the epoch of a master, which a name server of Rucola compares with that of others of its name.
    master_epoch: int | None = None


class RegisterBrokerBody(Body, kw_only=True):
    """The body of REGISTER_BROKER: all topics of the broker."""

    filter_server_list: list[str] = []
    topic_config_serialize_wrapper: TopicConfigSerializeWrapper


class RegisterBrokerResponseHeader(Header, kw_only=True):
    """The response to REGISTER_BROKER of a slave: its master's addresses for replication and for clients."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class QueryDataVersionResponseHeader(Header, kw_only=True):
    """The response to QUERY_DATA_VERSION: whether the broker must send its topics again."""

    changed: bool
    # Rucola's, if the request has an epoch: the newest master of the broker name that has registered.
    master_epoch: int | None = None
    master_addr: str | None = None


def encode_registration(body: RegisterBrokerBody, *, compress: bool = False) -> bytes:
    """Return the body of REGISTER_BROKER. Compressed, it lacks `topic_sys_flag` and `order`, like Apache's."""
    return slices.run(compression_steps(body)) if compress else encode_body(body)


def compression_steps(body: RegisterBrokerBody) -> Generator[None, None, bytes]:
    """Encode a compressed body of REGISTER_BROKER, a generator of small steps (see `rucola.slices`)."""
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


def decode_registration(header: RegisterBrokerRequestHeader, data: bytes) -> RegisterBrokerBody:
    """Return the body of REGISTER_BROKER at once, see `registration_steps`."""
    return slices.run(registration_steps(header, data))


def registration_steps(
    header: RegisterBrokerRequestHeader, data: bytes, max_topics: int = 100_000
) -> Generator[None, None, RegisterBrokerBody]:
    """Decode the body of REGISTER_BROKER in small steps (see `rucola.slices`).

    An empty body means no topics. RemoteProtocolError if the CRC in the header differs, for a malformed body, or for
    more than `max_topics` topics.
    """
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
    """`TopicConfigSerializeWrapper` with its table as received."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")


class _Registration(Body, kw_only=True):
    """`RegisterBrokerBody` with its long parts as received.

    To find their ends takes a tenth of decoding them.
    """

    filter_server_list: msgspec.Raw = msgspec.Raw(b"[]")
    topic_config_serialize_wrapper: _Topics


_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb"\{(?:[^{}\"]++|%b)*+\}" % _STRING
"""An object without objects in it, such as the `attributes` of a topic of RocketMQ 5."""
_MEMBER = rb"\s*+%b\s*+:\s*+\{(?:[^{}\"]++|%b|%b)*+\}\s*+,?+" % (_STRING, _STRING, _FLAT)
_MEMBERS = re.compile(rb"(?:%b){1,64}+" % _MEMBER, re.DOTALL)
"""Some members of a table of topics, which is known to be well-formed JSON."""
_table_decoder = msgspec.json.Decoder(dict[str, TopicConfig], strict=False)


def _decode_large(data: bytes, max_topics: int) -> Generator[None, None, RegisterBrokerBody]:
    """Decode a plain registration some topics at a time: at once, 100,000 take 50 ms."""
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
    """Decompress a body of at most MAX_REGISTRATION_SIZE bytes, piece by piece."""
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
    """Decode a decompressed body, see the module for its layout."""
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
    """Return the part at position `at`, preceded by its size, and the position after it."""
    (size,) = _SIZE.unpack_from(plain, at)
    begin = at + _SIZE.size
    if size < 0 or begin + size > len(plain):
        raise RemoteProtocolError(f"compressed registration: {size} bytes at byte {begin} of {len(plain)}")
    return plain[begin : begin + size], begin + size
