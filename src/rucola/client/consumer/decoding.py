"""Decoding the records of a response into messages. Bodies are decompressed in threads, up to a limit."""

from __future__ import annotations

import asyncio
import logging

from rucola.errors import InvalidMessage, RemoteProtocolError, RemotingTimeout
from rucola.message import MessageExt, record, sysflag
from rucola.message.compression import read_body
from rucola.remoting.deadline import Deadline

logger = logging.getLogger(__name__)

MAX_PULLED_SIZE = 128 * 1024 * 1024
"""Bytes of decompressed bodies at which a pull has enough: a response of 16 MB could expand to any size otherwise."""


async def decoded(
    records: bytes, source: str, deadline: Deadline, max_count: int = 1 << 62
) -> tuple[list[MessageExt], int]:
    """Return up to `max_count` messages, and how many of them, from the first on, are decompressed.

    RemoteProtocolError for a damaged record. RemotingTimeout.
    """
    try:
        messages = record.decode_many(records, decompress=False, max_count=max_count)
    except InvalidMessage as error:
        raise RemoteProtocolError(f"{source} returned a damaged record: {error}") from None
    if not any(message.sys_flag & sysflag.COMPRESSED for message in messages):
        return messages, len(messages)
    try:
        async with deadline.scope():
            return messages, await asyncio.to_thread(_decompress, messages, source)
    except RuntimeError:  # the main thread has ended, and Python's thread pools accept nothing more
        return messages, _decompress(messages, source)
    except TimeoutError:
        raise RemotingTimeout(
            f"the messages of {source} were not decompressed within {deadline.timeout_ms:g} ms: the threads "
            "of the event loop's executor are busy"
        ) from None


def _decompress(messages: list[MessageExt], source: str) -> int:
    size = 0
    for count, message in enumerate(messages):
        if size >= MAX_PULLED_SIZE:
            return count
        if message.sys_flag & sysflag.COMPRESSED:
            message.body, message.body_error = read_body(message.body, message.sys_flag)
        if message.body_error is not None:
            logger.warning(
                "%s, offset %d: the body is returned as stored: %s", source, message.queue_offset, message.body_error
            )
        size += len(message.body)
    return len(messages)
