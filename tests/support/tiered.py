"""A broker that reads the messages that have left its log from a lake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rucola.message import MessageExt
from rucola.message.compression import CompressionType, compress
from rucola.message.host import encode_host
from rucola.message.sysflag import COMPRESSED, COMPRESSION_MASK, TRANSACTION_COMMIT
from rucola.spark.jobs import archive
from rucola.spark.session import LazySession
from rucola.store.message_store import MessageStore
from support.aging_broker import AGING, ClockAndDisk, aging_broker
from support.peer import Peer
from support.stores import sound_store
from support.waiting import until

SESSION = LazySession("tests", use_spark=False)
SIZES = {"mapped_file_size_commit_log": 1 << 16, "mapped_file_size_consume_queue": 200}
TIME_MS = 1_700_006_399_000  # a second before midnight, UTC


def opened_store(path: Path) -> AbstractContextManager[MessageStore]:
    """The store of a tiered broker, opened before it."""
    return sound_store(path / "store", **AGING | SIZES)


def run_archive(path: Path) -> None:
    archive.run(SESSION, path / "store", path / "lake", broker_name="broker-a")


@asynccontextmanager
async def tiered_broker(
    path: Path, tiered_read_timeout: int = 60_000, **more: Any
) -> AsyncIterator[tuple[Peer, ClockAndDisk]]:
    """A broker that reads its lake; a full disk has it delete what is archived."""
    store = {
        "delete_only_archived": True,
        "archive_progress_path": path / "lake" / "_rucola" / "progress.json",
        "archive_name": "broker-a",
        **SIZES,
    }
    settings = {"tiered_reads": True, "tiered_read_timeout": tiered_read_timeout} | more
    async with aging_broker(path / "store", store=store, **settings) as opened:
        yield opened


async def delete_archived(peer: Peer, world: ClockAndDisk, begin: int) -> None:
    """Wait until the log has no message of the queue before an offset."""
    assert peer.broker.parts is not None
    store = peer.broker.parts.storage.store
    world.percent = 86
    await until(lambda: store.min_offset("T", 0) >= begin)
    world.percent = 50


def odd_messages() -> list[dict[str, Any]]:
    text = "é雪" * 400
    return [
        {"body": b"", "flag": 7, "born_timestamp": -1},
        {"body": text.encode(), "tags": "é", "keys": "k1 k2", "unique_key": "U1"},
        *(
            {
                "body": compress(text.encode(), kind),
                "sys_flag": kind.sys_flag | TRANSACTION_COMMIT,
                "prepared_transaction_offset": 77,
                "tags": "A",
            }
            for kind in CompressionType
        ),
        {"body": b"no stream", "sys_flag": CompressionType.ZSTD.sys_flag},
        {"body": compress(bytes(2 << 20)), "sys_flag": CompressionType.ZLIB.sys_flag, "reconsume_times": 3},
        {"born_host": encode_host("[2001:db8::1]:5"), "properties": b"b\x01\x01\x02a\x012\x02"},
        {"properties": b"x\x01" + b"\xff" * 32_000},
        {"properties": b"again\x011\x02junk\x02again\x012\x02TAGS\x01A"},
    ]


def same_message(message: MessageExt) -> MessageExt:
    """A message without what its encoding decides: whether it is compressed, sizes, and bytes that were no UTF-8."""
    flags = message.sys_flag if message.body_error else message.sys_flag & ~(COMPRESSED | COMPRESSION_MASK)
    pairs = {name: value.replace("\ufffd", "?") for name, value in message.properties.items()}
    return replace(message, sys_flag=flags, properties=pairs, store_size=0, stored_size=0, body_crc=0)
