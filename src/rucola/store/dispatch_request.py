"""The dispatch request: the fields of one record that a unit and index entries are built from; and its tags code.

A put creates the request from the message; recovery, replication and the offline tools read it back from the record.
A record has one request for its own queue, and one without keys for each further queue (see `multi_dispatch`).

Corresponds to `DispatchRequest` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from sys import intern
from typing import Final

from msgspec import Struct, structs

from rucola import speed
from rucola.errors import InvalidMessage
from rucola.message import properties
from rucola.message.delay import due_time_ms
from rucola.message.hashing import tags_code
from rucola.message.record import FRAME, MIN_RECORD_SIZE, Buffer, peek
from rucola.message.topics import DUE_TIME_TOPICS, TIMER_TOPIC
from rucola.store.consume_queue import TagsCodeReader, check_queue_name
from rucola.store.mapped_file import MappedFileQueue
from rucola.store.multi_dispatch import MULTI_DISPATCH_NAME, MultiDispatch, further_units

MAX_TAGS_CODE: Final = (1 << 63) - 1


class DispatchRequest(Struct, frozen=True, gc=False):
    """One record to be dispatched to one queue; a msgspec struct, since it is made per message."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    store_timestamp: int
    sys_flag: int
    tags_code: int
    """The hash of the tag, 0 without one; see `unit_tags_code` for the unit's."""
    unique_key: str | None
    keys: str | None
    """The property KEYS: words separated by blanks."""
    properties: bytes


def read_dispatch_request(buffer: Buffer, position: int) -> DispatchRequest:
    """Return the dispatch request of the record at `position`. Raises InvalidMessage if no queue can hold one."""
    outline = peek(buffer, position)
    check_queue_name(outline.topic, outline.queue_id)
    stored = bytes(buffer[outline.properties_begin : outline.properties_end])
    pairs = properties.parse(stored)
    return DispatchRequest(
        outline.topic,
        outline.queue_id,
        outline.queue_offset,
        outline.physical_offset,
        outline.size,
        outline.store_timestamp,
        outline.sys_flag,
        tags_code(pairs.get(properties.TAGS)),
        pairs.get(properties.UNIQ_KEY),
        pairs.get(properties.KEYS),
        stored,
    )


def read_requests(buffer: Buffer, position: int, end: int) -> list[DispatchRequest]:
    """Return the dispatch requests of the records between two positions, up to the first incomplete or invalid one."""
    if speed.read_requests is not None and (rows := speed.read_requests(buffer, position, end)) is not None:
        return [DispatchRequest(*row) for row in rows]
    requests: list[DispatchRequest] = []
    with suppress(InvalidMessage):
        while position + MIN_RECORD_SIZE <= end and position + FRAME.unpack_from(buffer, position)[0] <= end:
            requests.append(read_dispatch_request(buffer, position))
            position += requests[-1].size
    return requests


def dispatch_requests(request: DispatchRequest, mode: MultiDispatch) -> list[DispatchRequest]:
    """Return all requests of a record, given the one for its own queue, which comes first."""
    if mode is MultiDispatch.OFF or MULTI_DISPATCH_NAME not in request.properties:
        return [request]
    further = further_units(request.properties, (request.topic, request.queue_id), mode)
    return [request, *(_further(request, *queue, queue_offset) for queue, queue_offset in further.items())]


def _further(request: DispatchRequest, topic: str, queue_id: int, queue_offset: int) -> DispatchRequest:
    return structs.replace(
        request, topic=intern(topic), queue_id=queue_id, queue_offset=queue_offset, unique_key=None, keys=None
    )


def unit_tags_code(request: DispatchRequest, delay_levels: Sequence[int]) -> int:
    """Return the tags code of a record's unit: the time of delivery in topics ordered by it, else the tag's hash."""
    if request.topic not in DUE_TIME_TOPICS:
        return request.tags_code
    pairs = properties.parse(request.properties)
    if request.topic == TIMER_TOPIC:
        return min(_number(pairs.get(properties.TIMER_OUT_MS, "")), MAX_TAGS_CODE)
    level = _number(pairs.get(properties.DELAY, ""))
    return due_time_ms(delay_levels, level, request.store_timestamp) if level > 0 else request.tags_code


def tags_code_reader(log: MappedFileQueue, delay_levels: Sequence[int]) -> TagsCodeReader:
    def read(physical_offset: int, default: int) -> int:
        file = log.find(physical_offset)
        if file is None:
            return default
        try:
            request = read_dispatch_request(file.map, physical_offset - file.begin)
        except InvalidMessage:
            return default
        return unit_tags_code(request, delay_levels) if request.physical_offset == physical_offset else default

    return read


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
