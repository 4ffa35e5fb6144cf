"""`--archive LAKE`: a query that asks the live brokers first, and the lake for what has left their logs.

A message that both have is shown once, as the log has it, and each says where it came from: `log` or `archive`. Where
the brokers give no answer, what the lake has is shown, and the exit code is 1 as it is without a lake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from rucola.admin import MAX_LONG, KeyQueryResult, MessageExt
from rucola.cli.extras import require_spark
from rucola.errors import RemotingError, TopicNotFound

archive_option = click.option(
    "--archive",
    "lake",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Ask this lake, too, for what has left the log.",
)


@dataclass(frozen=True)
class Origins:
    """Where the messages of an answer came from; `archived` are the offsetMsgIds of those that only a lake had.

    Without a lake everything came from the log, and nothing is said of it.
    """

    archived: frozenset[str] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of a table that says it, if any."""
        return () if self.archived is None else ("#From",)

    def cells(self, message: MessageExt) -> tuple[str, ...]:
        """What stands in that column."""
        if self.archived is None:
            return ()
        return ("archive" if message.offset_msg_id in self.archived else "log",)

    def json(self, message: MessageExt) -> dict[str, str]:
        """The same as a field."""
        return dict(zip(("from",), self.cells(message), strict=False))

    def text(self, message: MessageExt) -> str:
        """The same as a line."""
        return "".join(f"\n{'From:':<20} {origin}" for origin in self.cells(message))


def query_both(
    live: Callable[[], KeyQueryResult],
    lake: Path | None,
    topic: str,
    key: str,
    most: int,
    *,
    unique: bool,
    window: tuple[int, int] = (0, MAX_LONG),
) -> tuple[KeyQueryResult, Origins]:
    """Return the answer of `live`, with the archived messages of a topic that have a key, or unique key, as well.

    They were stored in a time window, both ends included. Together they are the newest `most`, newest first.
    """
    if lake is None:
        return live(), Origins()
    with require_spark():
        from rucola.spark.lake.lookup import by_key
    try:
        result = live()
    except TopicNotFound:
        result = KeyQueryResult([])  # it was deleted since
    except RemotingError as error:
        result = KeyQueryResult([], failures={"the brokers": error})

    def is_in_window(message: MessageExt) -> bool:
        return window[0] <= message.store_timestamp <= window[1]

    found = by_key(lake, [key], most=most, unique=unique, topics=[topic], matches=is_in_window)
    in_log = {message.offset_msg_id for message in result.messages}
    archived = [each.message for each in found.messages if each.message.offset_msg_id not in in_log]
    messages = sorted(
        result.messages + archived, key=lambda each: (each.store_timestamp, each.physical_offset), reverse=True
    )
    is_cut = result.is_cut or found.is_cut or len(messages) > most
    return (
        replace(result, messages=messages[:most], is_cut=is_cut),
        Origins(frozenset(message.offset_msg_id for message in archived)),
    )


def archived_message(lake: Path, offset_msg_id: str) -> MessageExt | None:
    """Return the message to which a broker gave this id, None where the lake has none."""
    with require_spark():
        from rucola.spark.lake.lookup import by_offset_msg_id
    found = by_offset_msg_id(lake, offset_msg_id)
    return None if found is None else found.message
