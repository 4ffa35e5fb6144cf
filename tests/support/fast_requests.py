"""The requests of a read as the accelerator serves them, held against the way of each through Python."""

from __future__ import annotations

from itertools import accumulate

from msgspec.structs import astuple

from rucola import speed
from rucola.broker.config import BrokerConfig
from rucola.broker.remoting.send import SendAnswers
from rucola.broker.send_properties import PropertyEditor
from rucola.broker.services.results import Published
from rucola.message import MessageInner, MessageInnerBatch
from rucola.message.hashing import tags_code
from rucola.message.host import encode_host
from rucola.message.record import encode, encode_many
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand
from rucola.protocol.frame import MAX_FRAME_SIZE, MAX_HEADER_SIZE, FrameDecoder, FrameError
from rucola.protocol.pull import PullMessageRequestHeader
from rucola.protocol.send import SendMessageRequestHeaderV2
from rucola.protocol.topic import MULTI_TAG, TopicConfig
from rucola.store.dispatch_request import DispatchRequest
from support.accelerator import use

MAX_COUNT = 5
MAX_MESSAGES = 3
"""Of a batch."""
MAX_BODY_SIZE = 70
MAX_KEYS_SIZE = 8

TOPICS = {
    "T": TopicConfig(topic_name="T", write_queue_nums=4),
    "tags": TopicConfig(topic_name="tags", write_queue_nums=4, topic_filter_type=MULTI_TAG),
    "%RETRY%g": TopicConfig(topic_name="%RETRY%g", write_queue_nums=4),
}
OFFSETS = {("T", 0): 0, ("T", 1): 1 << 40, ("T", 3): 7, ("T", 4): 1, ("tags", 3): 1, ("%RETRY%g", 3): 1}
PHYSICAL_OFFSET, STORED_MS, ROOM = 0xABCDE, 1_700_000_000_123, 2000
BORN_HOST, STORE_HOST = encode_host("127.0.0.1:50000"), encode_host("[::1]:10911")

_CONFIG = BrokerConfig(broker_ip1="0:0:0:0:0:0:0:1", listen_port=10911, region_id="a 100 % region")
_ANSWERS = SendAnswers(_CONFIG)
_EDITOR = PropertyEditor("C")


def _commands(data: bytes) -> list[RemotingCommand]:
    try:
        return FrameDecoder().receive_data(data)
    except FrameError as error:
        return list(error.commands)


def _ends(data: bytes, count: int) -> list[int]:
    ends, end = [], 0
    for _ in range(count):
        end += 4 + int.from_bytes(data[end : end + 4], "big")
        ends.append(end)
    return ends


def assert_pulls(data: bytes) -> int:
    """Return the number of pulls that C reads at the begin of `data`; each must be what Python reads there."""
    assert speed.read_pulls is not None
    found = speed.read_pulls(memoryview(data), MAX_FRAME_SIZE, MAX_HEADER_SIZE, MAX_COUNT)
    assert found is not None
    assert len(found) <= MAX_COUNT
    with use(None):
        commands = _commands(data)[: len(found)]
        assert [command.code for command in commands] == [RequestCode.PULL_MESSAGE] * len(found)
        headers = [command.decode_header(PullMessageRequestHeader) for command in commands]
        opaques = [command.opaque for command in commands]
        assert found == list(zip(opaques, map(astuple, headers), _ends(data, len(found)), strict=True))
    return len(found)


def assert_sends(data: bytes, *, born_host: bytes = BORN_HOST, room: int = ROOM) -> int:
    """Return the number of sends that C encodes at the begin of `data`; each must become what Python makes of it."""
    assert speed.encode_sends is not None
    sending = (
        *(MAX_FRAME_SIZE, MAX_HEADER_SIZE, *_EDITOR.editing),
        *(TOPICS, _CONFIG.store_host, _ANSWERS.form_parts),
    )
    found = speed.encode_sends(
        memoryview(data), MAX_COUNT, sending, MAX_BODY_SIZE, MAX_KEYS_SIZE, MAX_MESSAGES, OFFSETS, PHYSICAL_OFFSET,
        room, STORED_MS, born_host,
    )  # fmt: skip
    if found is None:
        return 0
    records, responses, requests, next_offsets, count, end = found
    assert 1 <= count <= MAX_COUNT
    assert len(records) <= room
    with use(None):
        made = _Sends(born_host)
        for command in _commands(data)[:count]:
            made.add(command)
    assert records == made.records
    assert responses == made.responses
    assert [DispatchRequest(*fields) for fields in requests] == made.requests
    assert next_offsets == made.next_offsets
    assert end == _ends(data, count)[-1]
    return count


class _Sends:
    """What Python makes of the sends of a read."""

    def __init__(self, born_host: bytes) -> None:
        self.records = self.responses = b""
        self.requests: list[DispatchRequest] = []
        self.next_offsets: dict[tuple[str, int], int] = {}
        self._born_host = born_host

    def add(self, command: RemotingCommand) -> None:
        header = command.decode_header(SendMessageRequestHeaderV2)
        is_batch = command.code == RequestCode.SEND_BATCH_MESSAGE
        assert is_batch or command.code == RequestCode.SEND_MESSAGE_V2
        assert (command.flag, header.batch) == (0, "true" if is_batch else "false")
        topic, queue = TOPICS[header.topic], (header.topic, header.queue_id)
        assert 0 <= header.queue_id < topic.write_queue_nums
        assert topic.topic_filter_type != MULTI_TAG
        assert len(command.body) <= MAX_BODY_SIZE
        assert not header.sys_flag & (0xC if is_batch else 0x4)
        offset, physical_offset = self.next_offsets.get(queue, OFFSETS[queue]), PHYSICAL_OFFSET + len(self.records)
        assert offset > 0
        place = (offset, physical_offset, STORED_MS, _CONFIG.store_host)
        if is_batch:
            (flags, bodies, stored, codes, unique_keys, keys), end = _EDITOR.read_batch(
                command.body, header.properties, 0, MAX_MESSAGES
            )
            assert end == len(command.body)
            records, sizes = encode_many(
                MessageInnerBatch(
                    *queue, bodies, stored, flags, header.sys_flag, header.born_timestamp, self._born_host,
                    header.reconsume_times, codes, unique_keys, keys,
                ),
                *place,
            )  # fmt: skip
        else:
            edited = _EDITOR.edit(header.topic, header.properties)
            assert edited is not None
            records = encode(
                MessageInner(
                    *queue, command.body, edited[0], header.flag, header.sys_flag, header.born_timestamp,
                    self._born_host, header.reconsume_times,
                ),
                *place,
            )  # fmt: skip
            sizes, stored, codes = [len(records)], [edited[0]], [tags_code(edited[1])]
            unique_keys, keys = [edited[2]], [edited[3]]
        offsets = list(accumulate(sizes[:-1], initial=physical_offset))
        for number, at in enumerate(offsets):
            assert len(keys[number] or "") <= MAX_KEYS_SIZE
            self.requests.append(
                DispatchRequest(
                    *queue, offset + number, at, sizes[number], STORED_MS, header.sys_flag, codes[number],
                    unique_keys[number], keys[number], stored[number],
                )
            )  # fmt: skip
        published = Published(
            header.queue_id, offset, physical_offset, physical_offset + len(records), False, offsets if is_batch else ()
        )
        self.records += records
        self.responses += _ANSWERS.formatted(command.opaque, published)
        self.next_offsets[queue] = offset + len(offsets)
