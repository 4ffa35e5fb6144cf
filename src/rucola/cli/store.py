"""`rucola store`: look into a store directory that no broker needs to serve. Nothing is written, no lock is taken."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from rucola.cli.output import print_json
from rucola.errors import StoreError
from rucola.store.check import check as check_store
from rucola.store.dump import dump as dump_store

MARKS = ("commitlog", "config", "checkpoint")
"""What a store has from its first start on, or has left when somebody took parts of it away."""


def store_directory(ctx: click.Context, parameter: click.Parameter, path: Path) -> Path:
    """The directory that was named, or StoreError: an empty place is no clean store."""
    if not any((path / name).exists() for name in MARKS):
        raise StoreError(f"{path} is no store directory: it has none of {', '.join(MARKS)}")
    return path


directory = click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    callback=store_directory,
)


@click.group()
def store() -> None:
    """Look into a store directory, without a broker."""


@store.command()
@directory
@click.option("--json", "as_json", is_flag=True, help="Findings as a JSON list.")
def check(directory: Path, as_json: bool) -> None:
    """Hold everything in the store DIR against the format, and name what is wrong.

    Records, BLANK tails, every ConsumeQueue unit, every index chain, checkpoint and configuration. Exit code 1 where
    something was found. The store should not be served meanwhile: what is being written looks unfinished.

    \b
    Examples:
      rucola store check data
      rucola store check data --json
    """
    findings = check_store(directory)
    if as_json:
        print_json([{"path": str(found.path), "position": found.position, "what": found.what} for found in findings])
    else:
        for found in findings:
            click.echo(f"{found.path} at byte {found.position}: {found.what}")
        if findings:
            click.echo(f"{len(findings)} finding{'s' if len(findings) > 1 else ''}", err=True)
        else:
            click.echo(f"{directory} is clean")
    sys.exit(1 if findings else 0)


@store.command()
@directory
def dump(directory: Path) -> None:
    """Print every message in the CommitLog of DIR, in order, as one line of JSON.

    `cq` is topic|queueId|queueOffset, `tagsCode` what the ConsumeQueue has (null: not dispatched); bodies are given by
    size and SHA-256, once decompressed and once as stored.

    \b
    Examples:
      rucola store dump data | head
      rucola store dump data | jq -r 'select(.topic == "Orders") | .msgId'
    """
    out = sys.stdout.buffer
    encode = msgspec.json.Encoder().encode
    for message in dump_store(directory):
        out.write(encode(message))
        out.write(b"\n")
    out.flush()
