"""Dump: a store as JSON lines, one object per message, in log order.

    commitLogOffset topic queueId queueOffset storeSize msgId offsetMsgId storeTimestamp bornTimestamp bornHost
    storeHost sysFlag flag bodyCRC reconsumeTimes preparedTransactionOffset properties bodyLength bodySha256
    storedBodyLength storedBodySha256 tagsCode cq

Properties are sorted by name. Length and SHA-256 of the body are given twice: decompressed, and as stored. tagsCode and
cq ("topic|queueId|queueOffset") are from the ConsumeQueue unit that points at the record; null if none does. A body
that cannot be decompressed counts as stored, and a further field bodyError has the reason.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message import MessageExt
from rucola.message.compression import read_body
from rucola.message.record import decode
from rucola.store.directory_reader import StoreReader
from rucola.store.scan import ScanEnd


def dump(
    path: str | Path,
    progress: Callable[[int, int], None] | None = None,
    body_fields: Callable[[bytes], dict[str, Any]] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield all of the store's messages as dicts with the fields above, in that order.

    `body_fields` returns further fields for a body. `progress` gets (bytes done, bytes in total) of the log. Raises
    StoreCorrupt after all messages before any damage.
    """
    with StoreReader(path) as reader:
        units = _units_by_record(reader)
        total = sum(file.size for file in reader.commit_log_files)
        for item in reader.runs():
            if isinstance(item, ScanEnd):
                reader.check_end(item)
                if progress is not None:
                    progress(total, total)
                return
            for position in item.positions.tolist():
                try:
                    message = decode(item.file.map, position, decompress=False, check_crc=False)
                    yield message_row(message, units.get(item.file.begin + position), body_fields)
                except InvalidMessage as error:
                    raise StoreCorrupt(item.file.path, position, str(error)) from error
            if progress is not None:
                progress(item.end - reader.min_physical_offset, total)


def dump_lines(path: str | Path) -> Iterator[str]:
    """Yield the messages of `dump` as lines of compact JSON, without line ends."""
    for row in dump(path):
        yield json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _units_by_record(reader: StoreReader) -> dict[int, tuple[str, int]]:
    found: dict[int, tuple[str, int]] = {}
    for (topic, queue_id), (begin, end) in reader.queues().items():
        units = reader.units(topic, queue_id, begin, end)
        offsets, codes = units["physical_offset"].tolist(), units["tags_code"].tolist()
        for queue_offset, (physical_offset, code) in enumerate(zip(offsets, codes, strict=True), begin):
            found[physical_offset] = (f"{topic}|{queue_id}|{queue_offset}", code)
    return found


def message_row(
    message: MessageExt,
    unit: tuple[str, int] | None,
    body_fields: Callable[[bytes], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the fields above for a message with its body as stored, and its unit's (cq, tags code)."""
    body, body_error = read_body(message.body, message.sys_flag)
    row: dict[str, Any] = {
        "commitLogOffset": message.physical_offset,
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "storeSize": message.store_size,
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bodyCRC": message.body_crc,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": dict(sorted(message.properties.items())),
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "storedBodyLength": message.stored_size,
        "storedBodySha256": hashlib.sha256(message.body).hexdigest(),
        "tagsCode": unit[1] if unit else None,
        "cq": unit[0] if unit else None,
    }
    if body_error is not None:
        row["bodyError"] = body_error
    return row if body_fields is None else row | body_fields(body)
