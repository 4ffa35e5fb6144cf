"""Dead letters: the groups that have some, and reading."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import BeginTime, EndTime, Flag, Option, Result, Row, check_window, command
from rucola.admin.dead_letters import DeadLetter
from rucola.admin.message_view import message_json
from rucola.presentation import Column, Table, optional, time_text, whole

DeadGroup = Annotated[str, Option("-g --groupName", "Consumer group of the dead letters.")]
ShowAll = Annotated[bool, Flag("-a --showAll", "Include dead letters that were re-driven.")]


@command("dlqList", columns=(
    Column("#Group", "group"), Column("#Count", "count"), Column("#Waiting", "waiting"),
    Column("#Oldest", "oldestTimestamp", time_text), Column("#Newest", "newestTimestamp", time_text),
))  # fmt: skip
async def dlq_list(
    client: AdminClient, group: Annotated[str | None, Option("-g --groupName", "Only this group.")] = None
) -> list[Row]:
    """List the groups with dead letters.

    Shows their number, how many of them are not re-driven, and the times of the oldest and the newest.

    \b
    Examples:
      rucola admin dlqList
      rucola admin dlqList -g billing --json
    """
    groups = [group] if group is not None else await client.dead_letters.groups()
    found = [await client.dead_letters.stats(name) for name in groups]
    return [
        {
            "group": one.consumer_group, "count": one.count, "waiting": one.waiting,
            "oldestTimestamp": one.oldest_ms, "newestTimestamp": one.newest_ms,
        }
        for one in found
    ]  # fmt: skip


@command("printDlq")
async def print_dlq(
    client: AdminClient,
    group: DeadGroup,
    begin_ms: BeginTime = None,
    end_ms: EndTime = None,
    show_all: ShowAll = False,
) -> AsyncIterator[Result]:
    """Print the dead letters of a group that are not re-driven.

    With --json the output has one JSON object per line.

    \b
    Examples:
      rucola admin printDlq -g billing
      rucola admin printDlq -g billing -a -b 2013-01-01#00:00:00:000 --json
    """
    check_window(begin_ms, end_ms)
    rows: list[tuple[object, ...]] = []
    async for letter in selected_letters(client, group, begin_ms, end_ms, show_all):
        one = letter.message
        yield Result(letter_json(letter), [])
        rows.append(
            (one.offset_msg_id, letter.origin_topic or "", one.tags or "", one.keys or "", one.reconsume_times,
             time_text(one.store_timestamp), "yes" if letter.is_redriven else "no")
        )  # fmt: skip
    columns = (
        whole("#Offset Message ID"), "#Origin Topic", optional("#Tags"), optional("#Keys"),
        optional("#Reconsume Times"), optional("#Store Timestamp"), "#Redriven",
    )  # fmt: skip
    yield Result(None, [Table(columns, rows)])


def letter_json(letter: DeadLetter) -> Row:
    return message_json(letter.message) | {"originTopic": letter.origin_topic, "redriven": letter.is_redriven}


async def selected_letters(
    client: AdminClient, group: str, begin_ms: int | None, end_ms: int | None, show_all: bool
) -> AsyncIterator[DeadLetter]:
    async with aclosing(client.dead_letters.read(group, begin_ms, end_ms)) as letters:
        async for letter in letters:
            if show_all or not letter.is_redriven:
                yield letter
