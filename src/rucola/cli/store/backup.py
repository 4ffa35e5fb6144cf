"""`rucola store backup` and `restore`: a copy of a store that a broker may serve meanwhile, and a store from it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import click

from rucola.cli.extras import require_spark
from rucola.cli.option_types import PathType
from rucola.cli.output import print_json, progress_bar, time_text
from rucola.cli.store.directory import config_option, directory_argument, store_settings
from rucola.files import is_remote
from rucola.store.tools.backup import BackupDirectory, BackupStorage
from rucola.store.tools.backup import backup as backup_store
from rucola.store.tools.backup import restore as restore_store


def _place(ctx: click.Context, parameter: click.Parameter, where: str) -> BackupStorage:
    if not is_remote(where):
        return BackupDirectory(where)
    with require_spark():
        from rucola.spark.archive import object_store
    return cast(BackupStorage, object_store(where))


@click.command()
@directory_argument
@config_option
@click.option(
    "--out",
    callback=_place,
    required=True,
    help="Directory, or URL of an object store, for the backup.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def backup(directory: Path, config_file: Path | None, out: BackupStorage, as_json: bool) -> None:
    """Write a backup of the store DIR, which a broker may serve, or bring an earlier one up to date.

    The backup has every message that was acknowledged before the command began. It is complete or unchanged: what is
    in it is named last, in manifest.json. The next backup into the same place copies what came since then, and deletes
    what the store has deleted. DIR is only read. Name the broker.conf if it has storePathCommitLog. An object store
    needs the extra `lake`.

    \b
    Examples:
      rucola store backup /var/lib/rucola/broker-a --out /backup/broker-a
      rucola store backup /var/lib/rucola/broker-a --out s3://backups/broker-a
    """
    settings = store_settings(directory, config_file)
    settings.store_path_root_dir = directory
    with progress_bar(f"backup {directory}") as progress:
        now_ms = time.time_ns() // 1_000_000
        done = backup_store(directory, out, settings=settings, now_ms=now_ms, progress=progress)
    if as_json:
        print_json(done)
        return
    if done.unsaved is not None:
        first, last = done.unsaved
        click.echo(f"the store had deleted its log from {first} to {last} before it was in a backup", err=True)
    served = ", which is being served" if done.was_served else ""
    click.echo(
        f"{done.out}: {directory}{served}, from {done.begin} to {done.end}; {done.copied} bytes copied, "
        f"{done.unchanged} unchanged"
    )


@click.command()
@click.argument("source", metavar="OUT", callback=_place)
@click.argument("directory", metavar="DIR", type=PathType(file_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def restore(source: BackupStorage, directory: Path, as_json: bool) -> None:
    """Write the store DIR, which must be missing or empty, from the backup OUT.

    Every byte is compared with the digests in the backup; nothing is written if one differs. ConsumeQueues and index
    are built from the log. A broker may serve DIR under another address or brokerName: ids of messages that contain
    the address (offsetMsgId) still lead to the old one, keys and unique ids find all messages.

    \b
    Examples:
      rucola store restore /backup/broker-a /var/lib/rucola/broker-a
      rucola store restore s3://backups/broker-a /tmp/drill && rucola store check /tmp/drill
    """
    with progress_bar(f"restore {directory}") as progress:
        done = restore_store(source, directory, progress=progress)
    if as_json:
        print_json(done)
        return
    click.echo(
        f"{done.out}: the backup of {time_text(done.taken_ms)}, from {done.begin} to {done.end}; "
        f"{done.rebuilt.messages} messages in {done.rebuilt.queues} queues, {len(done.files)} files of tables"
    )
