"""Options and output of the commands that write tables of single topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rucola.cli.output import print_json, print_table

if TYPE_CHECKING:
    from rucola.spark.archive import Archive
    from rucola.spark.bodies import Decoder

_Command = TypeVar("_Command", bound=Callable[..., Any])


def topic_tables_options(command: _Command) -> _Command:
    """Add the options that choose topics with separate tables."""
    decode = click.option(
        "--decode",
        "decodings",
        metavar="TOPIC=FORMAT[:SCHEMA]",
        multiple=True,
        help="Write a table of this topic with its bodies as columns. FORMAT is json, avro or protobuf; SCHEMA is a "
        "file (JSON Schema, Avro, or protoc's descriptor set, with #MESSAGE) or the URL of a schema registry. "
        "JSON needs none. Can be repeated.",
    )
    each = click.option("--table-per-topic", "every_topic", is_flag=True, help="Write a table of every topic.")
    return decode(each(command))


def parse_decodings(decodings: Sequence[str]) -> dict[str, Decoder]:
    """Return the decoder of each topic."""
    from rucola.spark.bodies import parse_decoding

    parsed = [parse_decoding(each) for each in decodings]
    if len(dict(parsed)) != len(parsed):
        raise click.UsageError("--decode names a topic twice; give one format for each")
    return dict(parsed)


def derive_and_print(lake: Path | Archive, decoders: dict[str, Decoder], as_json: bool, **options: Any) -> None:
    """Add new messages of a lake to tables of topics, and print what was added."""
    from rucola.spark.archive import Archive

    results = Archive(lake).derive(decoders, **options)
    if as_json:
        print_json({"topics": [each.to_json() for each in results]})
    elif results:
        rows = [(each.topic, each.rows, each.errors, each.reason or "-") for each in results]
        print_table(("#Table", "#Messages", "#NotDecoded", "#Reason"), rows)
