"""The accelerator: C code for every message (`rucola._speed`), if this installation has it.

    RUCOLA_SPEED=0      disables it
    rucola --version    reports whether it is used and, if not, why

It is built if there are a C compiler and Python's headers (`hatch_build.py`, `speed/`). A function has the same results
as the Python code next to each of its calls, or returns None and leaves unusual input to that code. Without the
accelerator the functions are None. Callers read them at each call: tests set one to None.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from mmap import mmap
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from rucola.errors import MQError

INTERFACE: Final = 12
"""As in speed/speed.h. An extension with another number is from other sources, and not used."""


def _load() -> tuple[ModuleType | None, str]:
    """Return the extension, and the reason if it is not used."""
    switch = os.environ.get("RUCOLA_SPEED", "")
    if switch not in ("", "0", "1"):
        raise MQError(f"RUCOLA_SPEED is {switch!r}; it can be 0, without the accelerator, or 1, with it if it is there")
    if switch == "0":
        return None, "RUCOLA_SPEED=0"
    try:
        extension = import_module("rucola._speed")
    except ImportError as error:
        absent = Path(__file__).with_name("_speed.absent")
        return None, absent.read_text(encoding="utf-8").strip() if absent.is_file() else str(error)
    found = getattr(extension, "INTERFACE", None)
    if found != INTERFACE:
        return None, f"rucola._speed has interface {found}, not {INTERFACE}: install Rucola again (a clone: make speed)"
    return extension, ""


_extension, why_not = _load()

is_used: Final = _extension is not None


def description() -> str:
    return "accelerated" if is_used else f"pure Python ({why_not})"


Buffer = Any
"""An object with contiguous bytes; the type was added in Python 3.12."""


def _function(name: str) -> Any:
    return getattr(_extension, name, None)


split_frames: Callable[[Buffer, int, int], tuple[list[bytes], list[bytes], int] | None] | None
split_frames = _function("split_frames")
"""(data, max frame size, max header size) -> headers, bodies and end position of complete, valid JSON frames."""

QueueOffsets = dict[tuple[str, int], int]
"""Next queue offsets by (topic, queue id)."""

_Numbers = list[int]
Credentials = tuple[str, str, bytes, int]
"""Access key, signature, the signed text before the body of a request, and the position of its body."""
_Sent = tuple[list[str], _Numbers, _Numbers, _Numbers, _Numbers, _Numbers, list[bytes], list[bytes]]
"""Topics, queue ids, flags, sysFlags, born timestamps, reconsume times, properties, bodies: `publish.SentMessages`."""

read_sends: (
    Callable[
        [Buffer, int, int, int, int, int],
        tuple[list[int | None], _Numbers, _Numbers, list[Credentials | None], *_Sent] | None,
    ]
    | None
)
read_sends = _function("read_sends")
"""(data, max frame size, max header size, max requests, max body size, max messages of a batch) -> the columns of
`send.columns_of` for the sends at the start of a read, with the end position and the credentials of each.
"""

UsualFetch = tuple[str, str, int, int, int, int | None, int | None, str | None, str, int]
"""The fields of a FetchRequest, in their order."""

UsualPop = tuple[str, str, int, int, int, int, bool, bool, str | None, str, str, str, bool]
"""The fields of a PopRequest, in their order."""

read_fetch: Callable[[Buffer, int, int], tuple[int, int, UsualFetch | UsualPop, int, Credentials | None] | None] | None
read_fetch = _function("read_fetch")
"""(data, max frame size, max header size) -> (code, opaque, UsualFetch or UsualPop, end position, Credentials) of the
first request of a read, if it is PULL_MESSAGE or POP_MESSAGE.
"""

format_sends: Callable[[Sequence[bytes], list[int | None], _Numbers, _Numbers, _Numbers, _Numbers], bytes | None] | None
format_sends = _function("format_sends")
"""(parts of a response, opaques, numbers of messages, queue ids, queue offsets, physical offsets) ->
`SendAnswers.formatted`.
"""

EditedProperties = tuple[list[bytes], list[int], list[str | None], list[str | None], list[str | None]]
"""Of several messages: (stored property strings, tags codes, unique keys, KEYS, WAIT)."""

edit_properties: Callable[[list[bytes], bytes, bytes, int], EditedProperties | None] | None
edit_properties = _function("edit_properties")
"""(property strings, end, names, max size of KEYS) -> `PropertyEditor.edit`."""

split_batch: Callable[[bytes, int], tuple[list[int], list[bytes], list[bytes]] | None] | None = _function("split_batch")
"""(body, max count) -> `decode_part` from its start, if that is the whole batch."""

encode_record: Callable[..., bytes | None] | None = _function("encode_record")
"""(topic field, queue id, flag, body, properties, sysFlag, born timestamp, born host, store timestamp, store host,
reconsume times, prepared transaction offset, queue offset, physical offset) -> `record.encode`.
"""

_Records = tuple[bytes | bytearray, list[int], list[int]]
_Placed = tuple[list[str], _Numbers, _Numbers, list[bytes], list[bytes], _Numbers, _Numbers, _Numbers, _Numbers]

encode_records: Callable[[*_Placed, bytes, int, bytes, int], _Records | None] | None = _function("encode_records")
"""(topics, queue ids, flags, bodies, properties, sysFlags, born timestamps, reconsume times, queue offsets, born host,
store timestamp, store host, physical offset) -> `record.encode_many`.
"""

_QueueUnits = tuple[int, bytes, list[int], list[int]]

units_by_queue: Callable[[object, AbstractSet[str]], dict[tuple[str, int], _QueueUnits] | None] | None
units_by_queue = _function("units_by_queue")
"""(dispatch requests, topics with due times) -> `CommitLogDispatcher.units_by_queue`."""

index_entries: Callable[[object], tuple[bytes, bytes, bytes] | None] | None = _function("index_entries")
"""(dispatch requests) -> `dispatch.index_entries_of` as bytes."""

put_entries: Callable[[mmap, int, int, int, Buffer, Buffer, Buffer], int | None] | None = _function("put_entries")
"""(map, slot count, first number, start timestamp, the columns of `IndexFile.put_many`) -> new slots."""

select_entries: Callable[[mmap, int, int, int, int, int, int, int, int], list[int] | None] | None
select_entries = _function("select_entries")
"""(map, slot count, next number, start timestamp, arguments of `IndexFile.select_steps`) -> its result, if short."""

read_records: Callable[[mmap | int, int, int, list[int], int], list[bytes | None] | None] | None
read_records = _function("read_records")
"""(map or descriptor, its start offset, bytes written, arguments of `CommitLog.records`) -> its result."""

_Accepts = Callable[[int], bool] | None

read_units: Callable[[bytes, int, mmap, int, int, int, int, _Accepts], tuple[bytes, int, int] | None] | None
read_units = _function("read_units")
"""(units, first queue offset, map, its start offset, bytes written, max count, max bytes, accepts) -> `read_batch`."""

decode_records: Callable[[bytes, int], list[tuple[Any, ...]] | None] | None = _function("decode_records")
"""(records, max count) -> the arguments of MessageExt of `record.decode_many`, without decompression."""

read_requests: Callable[[Buffer, int, int], list[tuple[Any, ...]] | None] | None = _function("read_requests")
"""(buffer, position, end) -> the fields of `dispatch_request.read_requests`."""

scan_records: Callable[[bytes, int, int], tuple[bytes, bytes, bytes, int] | None] | None = _function("scan_records")
"""(data, its physical offset, 1 to check bodies) -> the columns of `scan.RecordRun`, end of the valid records."""

_Run = tuple[dict[tuple[str, int], tuple[int, bytes]], tuple[bytes, bytes, bytes]]

read_run: Callable[[Buffer, int, int, AbstractSet[str]], _Run | None] | None = _function("read_run")
"""(buffer, position, end, topics with due times) -> the units by queue and the index entries of `dispatch.read_run`."""

crc32_of_ranges: Callable[[Buffer, Buffer, Buffer], bytes | None] | None = _function("crc32_of_ranges")
"""(data, start positions, end positions) -> the bytes of `record.body_crcs`."""

_Properties = tuple[bytes, list[bytes], bytes, bytes, bytes, bytes]

parse_properties: Callable[[Buffer, Buffer, Buffer], _Properties | None] | None = _function("parse_properties")
"""(data, start positions, end positions) -> `property_columns.parse_properties` of the regular rows, as bytes of
arrays: (offsets of the pairs of each row: int32; names; code of the name of each pair: int32; offset of each value:
int32; values; irregular rows: int64).
"""
