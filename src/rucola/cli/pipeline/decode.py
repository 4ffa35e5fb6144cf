"""`rucola pipeline decode` and `infer-schema`: tables of topics from the messages of a lake, and schemas for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rucola.cli.lake_options import catalog_option
from rucola.cli.option_types import PathType
from rucola.cli.output import wide_option
from rucola.cli.pipeline.archive import lake_option
from rucola.cli.pipeline.command import json_option, require_spark
from rucola.cli.pipeline.topic_tables import derive_and_print, parse_decodings, topic_tables_options
from rucola.errors import StoreError
from rucola.files import replace_file

if TYPE_CHECKING:
    from rucola.spark.archive import Archive


@click.command()
@lake_option
@catalog_option
@topic_tables_options
@click.option("--again", is_flag=True, help="Write these tables anew from all messages of the lake.")
@json_option
@wide_option
def decode(lake: Path | Archive, decodings: Sequence[str], every_topic: bool, again: bool, as_json: bool) -> None:
    """Write tables of single topics from the messages of a lake, as `archive --decode` does.

    A body that does not decode is in the table as it is, with the reason in `_decode_error`. After a correction of the
    schema, --again empties the tables, and writes them from all messages of the lake.

    \b
    Examples:
      rucola pipeline decode --lake lake --decode Orders=json:orders.json
      rucola pipeline decode --lake lake --decode Orders=json:orders.json --again
      rucola pipeline decode --lake lake --table-per-topic
    """
    if not decodings and not every_topic:
        raise click.UsageError("give --decode or --table-per-topic")
    with require_spark():
        decoders = parse_decodings(decodings)
    derive_and_print(lake, decoders, as_json, every_topic=every_topic, again=again)


@click.command()
@lake_option
@catalog_option
@click.option("--topic", "-t", required=True, help="Topic with JSON bodies.")
@click.option("--sample", type=click.IntRange(1), default=10_000, show_default=True, help="Messages to look at.")
@click.option("--out", type=PathType(dir_okay=False), help="Write the schema to this file.")
def infer_schema(lake: Path | Archive, topic: str, sample: int, out: Path | None) -> None:
    """Show the JSON Schema of a topic's bodies, from the first messages of a lake.

    To confirm it, give the file to `archive --decode`, after changing it if need be. Notes on fields that have no type,
    or more than one, are on stderr.

    \b
    Examples:
      rucola pipeline infer-schema --lake lake -t Orders
      rucola pipeline infer-schema --lake lake -t Orders --sample 100000 --out orders.json
    """
    with require_spark():
        from rucola.spark.archive import Archive
        from rucola.spark.bodies import infer
    batches = Archive(lake).scan(topics=[topic]).batches(["body"])
    bodies = (body for batch in batches for body in batch["body"].to_pylist() if body is not None)
    found = infer(islice(bodies, sample))
    if not found.bodies:
        raise StoreError(f"{lake} has no messages of {topic}", subject=topic)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if found.invalid:
        click.echo(f"note: {found.invalid} of {found.bodies} bodies are not JSON objects", err=True)
    text = json.dumps(found.schema, indent=2, ensure_ascii=False)
    click.echo(text)
    if out is not None:
        replace_file(out, text.encode() + b"\n")
        click.echo(f"{out} is the schema of {found.bodies} messages; use it as --decode {topic}=json:{out}", err=True)
