"""`rucola pipeline search`: find messages in a lake."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rucola.admin.message_view import message_json
from rucola.cli.lake_options import catalog_option
from rucola.cli.output import optional, print_json, print_table, time_text, whole, wide_option
from rucola.cli.pipeline.archive import lake_option
from rucola.cli.pipeline.command import json_option, master_option, require_spark, show_tasks, spark_option
from rucola.cli.pipeline.selection_options import selection_options

if TYPE_CHECKING:
    from rucola.spark.archive import Archive


@click.command()
@lake_option
@catalog_option
@selection_options
@click.option("-i", "--msgId", "offset_msg_id", help="Only the message with this offsetMsgId.")
@click.option(
    "-m",
    "--maxNum",
    "limit",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Maximum number of messages.",
)
@master_option
@spark_option
@json_option
@wide_option
def search(
    lake: Path | Archive,
    conditions: dict[str, Any],
    offset_msg_id: str | None,
    limit: int,
    master: str | None,
    use_spark: bool | None,
    as_json: bool,
) -> None:
    """Find archived messages that meet all conditions, newest first.

    By key, unique key or offsetMsgId the search reads only the parts of the lake that the index names, and answers at
    once. Other searches read all messages of the selected topics and days, in Spark if there are many.

    \b
    Examples:
      rucola pipeline search --lake lake -k N14228
      rucola pipeline search --lake lake -t Flights -g 'UA || AA' -b 2013-01-01T05:00 -e 2013-01-01T06:00 --json
    """
    with require_spark():
        from rucola.spark.jobs.search import run
        from rucola.spark.jobs.selection import Selection
        from rucola.spark.session import LazySession
    selection = Selection(**conditions)
    session = LazySession("rucola pipeline search", master, use_spark=use_spark)
    with show_tasks(session, "search"):
        found = run(session, lake, selection, offset_msg_id, limit=limit)
    if as_json:
        messages = [{"brokerName": each.broker_name} | message_json(each.message) for each in found.messages]
        print_json({"messages": messages, "cut": found.is_cut})
    elif found.messages:
        places = [(m.msg_id, m.topic, name, m.queue_id, m.queue_offset) for m, name in found.messages]
        words = [(time_text(m.store_timestamp), m.tags or "", m.keys or "") for m, _ in found.messages]
        print_table(
            (
                whole("#Message ID"), "#Topic", "#Broker", whole("#QID"), "#Offset", optional("#Stored"),
                optional("#Tags"), optional("#Keys"),
            ),
            [(*place, *rest) for place, rest in zip(places, words, strict=True)],
        )  # fmt: skip
    else:
        click.echo("no message matches", err=True)
    if found.is_cut:
        click.echo(f"these are the newest {limit} of more messages; raise the limit with -m", err=True)
