"""The arguments that the commands of `rucola store` have in common."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from rucola import settings
from rucola.errors import StoreCorrupt, StoreError
from rucola.store.config import StoreConfig
from rucola.store.tools.rebuild import detect_config

MARKS = ("commitlog", "config", "checkpoint")
"""What a store has from its first start on, or has left when somebody took parts of it away."""


def _store_directory(ctx: click.Context, parameter: click.Parameter, path: Path) -> Path:
    """The directory that was named, or StoreError: an empty place is no clean store."""
    if not any((path / name).exists() for name in MARKS):
        raise StoreError(f"{path} is no store directory: it has none of {', '.join(MARKS)}")
    return path


directory_argument = click.argument(
    "directory",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    callback=_store_directory,
)
config_option = click.option(
    "-c",
    "--configFile",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The broker.conf with the sizes of files and the delay levels, where they are not the defaults.",
)


def index_slots(config_file: Path | None) -> int:
    """maxHashSlotNum of a broker.conf; 0 where it is not said."""
    given = settings.read(config_file) if config_file else {}
    return settings.fill(StoreConfig, given).max_hash_slot_num if "maxHashSlotNum" in given else 0


def settings_of(directory: Path, config_file: Path | None, *, broken: bool = False) -> StoreConfig:
    """The settings of a store: what broker.conf says, else what its files show, else Apache's defaults.

    An index that shows nothing is an error unless it may be `broken`.
    """
    given = settings.read(config_file) if config_file else {}
    try:
        found = detect_config(directory)
    except StoreCorrupt as error:
        if not broken and "maxHashSlotNum" not in given:
            raise StoreError(f"{error}; a broker.conf with maxHashSlotNum and maxIndexNum does (-c)") from error
        found = detect_config(directory, index=False)
    return settings.fill(StoreConfig, given, **{f.name: getattr(found, f.name) for f in dataclasses.fields(found)})
