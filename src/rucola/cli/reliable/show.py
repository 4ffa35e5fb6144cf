"""`rucola reliable show`: everything about one message, and what happens to it next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from textwrap import TextWrapper

import click

from rucola.admin.commands.archive_query import HELP
from rucola.cli.extras import require_spark
from rucola.cli.lake_options import LakeType, catalog_option
from rucola.cli.option_types import namesrv_option
from rucola.cli.output import duration_text, print_json, printable, time_text, to_json
from rucola.cli.reliable.command import Where, database_options, json_option
from rucola.errors import MQError
from rucola.reliable import ReliableError, operations
from rucola.reliable.joined_view import ARCHIVE, Brokers, JoinedView, StoredCopy, copy_of, join, look_up, topics_of
from rucola.reliable.operations import MessageView, StubView

BODY_PREVIEW = 200
WIDTH = 80
LABEL_WIDTH = 11


@click.command()
@click.argument("message_id")
@namesrv_option("namesrv_addr", "Name servers; with this option, brokers are queried, too.")
@click.option("-t", "--topic", help="Topic at the brokers, for a message whose stub was purged.")
@click.option("--archive", "lake", type=LakeType(), help=HELP)
@catalog_option
@json_option
@database_options
def show(
    where: Where, message_id: str, namesrv_addr: str | None, topic: str | None, lake: Path | None, as_json: bool
) -> None:
    """Show where one message is now, and what happens to it next.

    Combines stub, receipts and done rows. With a name server, also the copies that brokers store, in the topic and in
    the retry and dead letter queues of its groups, and the groups' backlogs; with --archive, the copies in a lake. If
    the brokers do not answer, the rest is shown.

    \b
    Examples:
      rucola reliable show 7F000001000418B4AAC2508C77F60000
      rucola reliable show 7F000001000418B4AAC2508C77F60000 -n localhost:9876 --json
      rucola reliable show 7F000001000418B4AAC2508C77F60000 --archive /data/lake
    """
    shown = where.run_checked(operations.show, message_id)
    topic = shown.stub.topic if shown.stub is not None else topic
    brokers = None
    if namesrv_addr and topic:
        try:
            brokers = asyncio.run(look_up(namesrv_addr, message_id, topic, shown))
        except MQError as error:
            brokers = Brokers([], {}, {"brokers": str(error)})
    view = join(shown, brokers, [] if lake is None else _archived_copies(lake, message_id, shown))
    if shown.stub is None and not shown.receipts and not shown.done and not view.copies:
        unasked = "".join(f"; not searched: {server}: {why}" for server, why in view.failures.items())
        raise ReliableError(
            f"there is no message {message_id!r} in the tables: purged, or never added; check id, database and "
            f"prefix{unasked}"
        )
    if as_json:
        print_json(to_json(view))
        return
    _print_message(view)
    if namesrv_addr is None:
        _line("brokers", "not queried; use -n HOST:PORT")
    elif topic is None:
        _line("brokers", "not queried: without a stub, name the topic with -t")
    for server, why in view.failures.items():
        _line("brokers", f"incomplete: {why}" if server == "brokers" else f"incomplete: {server}: {why}")
    if view.where:
        _line("now", view.where)
    for place in view.groups:
        if place.next != "nothing":
            _line("next", f"{place.group}: {place.next}")
    _line("next", view.next)


def _archived_copies(lake: Path, message_id: str, shown: MessageView) -> list[StoredCopy]:
    with require_spark():
        from rucola.spark.archive import Archive
    topics = None if shown.stub is None else topics_of(shown.stub.topic, shown)
    found = Archive(lake).by_key([message_id], unique=True, topics=topics)
    return [copy_of(archived.message, ARCHIVE) for archived in found.messages]


def _line(label: str, text: str) -> None:
    """Print a labelled line that fits 80 columns; ids are never broken."""
    wrapper = TextWrapper(WIDTH, subsequent_indent=" " * LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)
    click.echo(wrapper.fill(printable(f"{label:<{LABEL_WIDTH}}{text}")))


def _print_message(view: JoinedView) -> None:
    if view.message.stub is not None:
        _print_stub(view.message, view.message.stub)
    else:
        _line("message", "no stub: purged, or sent without an outbox")
    for receipt in view.message.receipts:
        held = f", held for another {duration_text(receipt.held_for_ms)}" if receipt.held_for_ms is not None else ""
        _line("received", f"by group {receipt.group} {duration_text(receipt.age_ms)} ago{held}")
    for group, done_at in view.message.done.items():
        _line("done", f"by group {group} at {time_text(done_at)}")
    for copy in view.copies:
        origin = "archived" if copy.origin == ARCHIVE else "stored"
        _line(origin, f"{copy.topic}, queue {copy.queue_id}, offset {copy.queue_offset}")
        _line("", f"at {copy.store_host}, {time_text(copy.store_timestamp)}")


def _print_stub(shown: MessageView, stub: StubView) -> None:
    _line("message", stub.message_id)
    _line("topic", f"{stub.topic}, tags {shown.tags or '-'}, keys {shown.keys or '-'}")
    _line("body", f"{len(shown.body)} bytes: {shown.body[:BODY_PREVIEW]!r}")
    _line("status", f"{stub.status}, added {time_text(stub.created_at)}, {duration_text(stub.age_ms)} ago")
    if stub.reopened_at is not None:
        _line("reopened", f"by an operator at {time_text(stub.reopened_at)}")
    if stub.shard_key is not None:
        _line("shard key", stub.shard_key)
    if stub.awaiting:
        _line("awaits", ", ".join(stub.awaiting))
    if stub.broker is not None:
        offset = "unknown" if stub.queue_offset is None else stub.queue_offset
        times = "once" if stub.sends == 1 else f"{stub.sends} times, last"
        _line("sent", f"{times} to {stub.broker}, queue {stub.queue_id}, offset {offset}")
    if stub.error is not None:
        _line("why", stub.error)
