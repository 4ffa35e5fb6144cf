"""Queries with `--archive LAKE`: first the live brokers, then the lake.

A message found in both is shown once, as stored in the log. If no broker answers, the messages of the lake are shown,
and the exit code is 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Protocol

from rucola.admin.commands.command import Option
from rucola.admin.queries import MAX_LONG, KeyQueryResult, store_position
from rucola.errors import RemotingError, TopicNotFound
from rucola.message import MessageExt


class MessageArchive(Protocol):
    """A lake, as `rucola.spark.archive.Archive` reads it; its results have `messages` with a `message` each."""

    def by_key(
        self, keys: list[str], *, most: int, unique: bool, topics: list[str], matches: Callable[[MessageExt], bool]
    ) -> Any: ...

    def by_offset_msg_id(self, offset_msg_id: str) -> Any: ...

    def stored_between(self, topic: str, begin_ms: int, end_ms: int) -> Iterator[list[Any]]: ...

    def progress(self) -> Any: ...

    def status(self) -> Any: ...


HELP = "Also search this lake, for messages that are no longer in the log."
Archive = Annotated[MessageArchive | None, Option("--archive", HELP, format="lake")]


@dataclass(frozen=True)
class Origins:
    """Origins of a result's messages; `archived` has the offsetMsgIds found only in the lake, None without a lake."""

    archived: frozenset[str] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.archived is None else ("#From",)

    def cells(self, message: MessageExt) -> tuple[str, ...]:
        if self.archived is None:
            return ()
        return ("archive" if message.offset_msg_id in self.archived else "log",)

    def json(self, message: MessageExt) -> dict[str, str]:
        return dict(zip(("from",), self.cells(message), strict=False))

    def text(self, message: MessageExt) -> str:
        return "".join(f"\n{'From:':<20} {origin}" for origin in self.cells(message))


async def query_both(
    live: Callable[[], Awaitable[KeyQueryResult]],
    lake: MessageArchive | None,
    topic: str,
    key: str,
    most: int,
    *,
    unique: bool,
    window: tuple[int, int] = (0, MAX_LONG),
) -> tuple[KeyQueryResult, Origins]:
    """Combine the result of `live` with a topic's archived messages that have this key, newest first, at most `most`.

    `window` is the first and the last store timestamp, in milliseconds, both inclusive.
    """
    if lake is None:
        return await live(), Origins()
    # 1. Query the brokers. If no broker answers, this is a failure of the result, and the lake is searched anyway.
    try:
        result = await live()
    except TopicNotFound:
        result = KeyQueryResult([])  # the topic was deleted after it was archived
    except RemotingError as error:
        result = KeyQueryResult([], failures={"the brokers": error})

    def is_in_window(message: MessageExt) -> bool:
        return window[0] <= message.store_timestamp <= window[1]

    # 2. Search the lake. A message that is both archived and in the log has the same offsetMsgId in both.
    found = await asyncio.to_thread(lake.by_key, [key], most=most, unique=unique, topics=[topic], matches=is_in_window)
    in_log = {message.offset_msg_id for message in result.messages}
    archived = [each.message for each in found.messages if each.message.offset_msg_id not in in_log]
    # 3. Merge by store time. The result is cut if either side was, or if both together exceed the limit.
    messages = sorted(result.messages + archived, key=store_position, reverse=True)
    is_cut = result.is_cut or found.is_cut or len(messages) > most
    return (
        replace(result, messages=messages[:most], is_cut=is_cut),
        Origins(frozenset(message.offset_msg_id for message in archived)),
    )


async def archived_message(lake: MessageArchive, offset_msg_id: str) -> MessageExt | None:
    found = await asyncio.to_thread(lake.by_offset_msg_id, offset_msg_id)
    return None if found is None else found.message
