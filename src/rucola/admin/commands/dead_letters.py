"""Dead letters: the groups that have some, reading, and sending again. mqadmin has no such commands."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Protocol

from rucola.admin.client import AdminClient
from rucola.admin.commands.command import (
    BeginTime,
    EndTime,
    Flag,
    InvalidArguments,
    Option,
    Result,
    Row,
    check_window,
    command,
    split,
)
from rucola.admin.dead_letters import DeadLetter
from rucola.admin.message_view import message_json
from rucola.admin.redrive import AfterRedrive, RedriveStatus
from rucola.presentation import Column, Table, optional, time_text, whole

DeadGroup = Annotated[str, Option("-g --groupName", "Consumer group of the dead letters.")]
ShowAll = Annotated[bool, Flag("-a --showAll", "Include dead letters that were re-driven.")]


class StubReopening(Protocol):
    """Makes what reopens the stubs of a group's re-driven dead letters."""

    def __call__(self, group: str) -> AfterRedrive: ...


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


@command("printDlq", shows_bodies=True)
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
) -> AsyncGenerator[DeadLetter, None]:
    async with aclosing(client.dead_letters.read(group, begin_ms, end_ms)) as letters:
        async for letter in letters:
            if show_all or not letter.is_redriven:
                yield letter


async def _resending(client: AdminClient, **given: Any) -> str:
    group, begin_ms, end_ms = given["group"], given["begin_ms"], given["end_ms"]
    ids = _check_selection(given["msg_ids"], begin_ms, end_ms)
    if given["dry_run"]:
        return ""
    # With a database, stubs of letters that were re-driven before may be reopened.
    if not ids and given["reopening"] is None and not await _has_letters(client, group, begin_ms, end_ms):
        return ""
    number = f"{len(ids)} of " if ids else ""
    edited = ", with another body" if given["body"] is not None else ""
    return f"send {number}the dead letters of group {group} again{edited}"


async def _has_letters(client: AdminClient, group: str, begin_ms: int | None, end_ms: int | None) -> bool:
    async with aclosing(selected_letters(client, group, begin_ms, end_ms, False)) as letters:
        return await anext(letters, None) is not None


def _check_selection(msg_ids: str | None, begin_ms: int | None, end_ms: int | None) -> list[str]:
    """Return the ids, if any."""
    check_window(begin_ms, end_ms)
    ids = split(msg_ids or "")
    if msg_ids is not None and not ids:
        raise InvalidArguments("-i names no message")
    if ids and (begin_ms is not None or end_ms is not None):
        raise InvalidArguments("-i names messages, so -b and -e cannot be given with it")
    return ids


@command("redriveDlq", confirm=_resending)
async def redrive_dlq(
    client: AdminClient,
    group: DeadGroup,
    msg_ids: Annotated[
        str | None, Option("-i --msgId", "Only the messages with these offsetMsgIds, separated by commas.")
    ] = None,
    begin_ms: BeginTime = None,
    end_ms: EndTime = None,
    only_group: Annotated[bool, Flag("-r --onlyGroup", "Send only to this group, through its retry topic.")] = False,
    per_second: Annotated[float | None, Option("-s --perSecond", "Limit of messages per second.", min=0.001)] = None,
    dry_run: Annotated[
        bool, Flag("-d --dryRun", "Print which messages would be sent to which topic, and send nothing.")
    ] = False,
    body: Annotated[
        str | None, Option("-p --body", "With one -i: the body of the copy, as UTF-8 text.", format="text")
    ] = None,
    reopening: Annotated[
        StubReopening | None,
        Option(
            "--database",
            "URL of the outbox's database (`rucola reliable`): reopens the DEAD stubs of the messages, too.",
            format="outbox",
            envvar="RUCOLA_DATABASE",
        ),
    ] = None,
) -> AsyncIterator[Result]:
    """Re-drive the dead letters of a group: send them to their original topics again.

    All groups of such a topic receive the message, unless -r is given.

    With --database, DEAD stubs of an outbox wait for the confirmation again (SENT), and a further failure raises a new
    alert; without it they stay DEAD until the copy is consumed, which confirms them.

    Dead letters that were re-driven before are skipped, so an interrupted run can be repeated. If some cannot be sent,
    they are named and stay, and the exit code is 1. Dead letters are kept until they expire. With --json the output has
    one JSON object per line.

    \b
    Examples:
      rucola admin redriveDlq -g billing --dryRun
      rucola admin redriveDlq -g billing -s 100 --yes
      rucola admin redriveDlq -g billing -r -i 7F00000100002A9F0000000000000000 --yes
      rucola admin redriveDlq -g billing -i 7F00000100002A9F0000000000000000 -p '{"amount": 12}' --yes
      rucola admin redriveDlq -g billing --database sqlite:///shop.db --yes
    """
    ids = _check_selection(msg_ids, begin_ms, end_ms)
    if body is not None and len(ids) != 1:
        raise InvalidArguments("-p is the body of one message: name it with -i")
    after = None if reopening is None or dry_run else reopening(group)
    statuses, topics, reopened = Counter[RedriveStatus](), Counter[str](), 0
    results = client.dead_letters.redrive(
        group, ids, begin_ms=begin_ms, end_ms=end_ms, only_group=only_group,
        per_second=per_second, dry_run=dry_run, after=after, body=None if body is None else body.encode(),
    )  # fmt: skip
    async with aclosing(results):
        async for result in results:
            statuses[result.status] += 1
            reopened += result.is_reopened
            if result.status in (RedriveStatus.SENT, RedriveStatus.WOULD_SEND):
                topics[result.topic] += 1
            one = result.message
            value = {
                "offsetMsgId": one.offset_msg_id, "msgId": one.msg_id, "topic": result.topic,
                "status": result.status.name, "reason": result.reason, "reopened": result.is_reopened,
            }  # fmt: skip
            failed = result.status is RedriveStatus.FAILED
            yield Result(value, [], [f"{one.offset_msg_id} was not sent: {result.reason}"] if failed else [])
    counts = f"{statuses[RedriveStatus.DONE_BEFORE]} re-driven before, {statuses[RedriveStatus.FAILED]} failed"
    stubs = f", {reopened} DEAD stubs reopened" if after is not None else ""
    table = Table(("#Topic", "#Would Send" if dry_run else "#Sent"), sorted(topics.items()))
    if statuses.keys() <= {RedriveStatus.DONE_BEFORE}:
        counts = f"there is nothing to send: {counts}"
    yield Result(None, [table] if topics else [], [counts + stubs], is_failure=bool(statuses[RedriveStatus.FAILED]))
