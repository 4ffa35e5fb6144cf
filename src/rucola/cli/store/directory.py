"""Arguments shared by the commands of `rucola store`, and the settings of a store directory."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from rucola import settings
from rucola.broker.apache_settings import WITHOUT_EFFECT
from rucola.broker.config import BrokerConfig
from rucola.cli.option_types import PathType
from rucola.errors import StoreCorrupt
from rucola.store.config import StoreConfig
from rucola.store.directory_entries import DIVERGED, IDENTIFYING_ENTRIES
from rucola.store.tools.rebuild import detect_config


def check_store_argument(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a directory that is no store: an empty one would pass every check."""
    if path is None:
        return None
    if path.name == DIVERGED and (tails := sorted(tail for tail in path.iterdir() if tail.is_dir())):
        raise click.BadParameter(f"{path} has store directories of their own: {', '.join(map(str, tails))}")
    if not any((path / name).exists() for name in IDENTIFYING_ENTRIES):
        raise click.BadParameter(f"{path} is not a store directory: it has none of {', '.join(IDENTIFYING_ENTRIES)}")
    return path


directory_argument = click.argument(
    "directory",
    metavar="DIR",
    type=PathType(exists=True, file_okay=False),
    callback=check_store_argument,
)
config_option = click.option(
    "-c",
    "--configFile",
    "config_file",
    type=PathType(exists=True, dir_okay=False),
    help="broker.conf of the store, if its file sizes or delay levels are not the defaults.",
)


def index_slots(config_file: Path | None) -> int:
    """Return maxHashSlotNum of a broker.conf, or 0 if it is not set."""
    given = _read(config_file)
    return settings.fill(StoreConfig, given).max_hash_slot_num if "maxHashSlotNum" in given else 0


def store_settings(directory: Path, config_file: Path | None, *, broken: bool = False) -> StoreConfig:
    """Return a store's settings: from broker.conf, else derived from its files, else Apache's defaults.

    If the index is too damaged to derive its size, the default is used if `broken`; otherwise StoreError is raised.
    """
    given = _read(config_file)
    try:
        found = detect_config(directory)
    except StoreCorrupt:
        if not broken and "maxHashSlotNum" not in given:
            raise
        found = detect_config(directory, index=False)
    return settings.fill(StoreConfig, given, **{f.name: getattr(found, f.name) for f in dataclasses.fields(found)})


def new_store_settings(directory: Path, config_file: Path | None) -> StoreConfig:
    """Return the settings of a store that does not exist yet: from broker.conf, else Apache's defaults."""
    return settings.fill(StoreConfig, _read(config_file), store_path_root_dir=directory)


def _read(config_file: Path | None) -> dict[str, str]:
    """The keys and values of a broker.conf; ConfigError names an unknown key."""
    if config_file is None:
        return {}
    given = settings.read(config_file)
    with settings.located(config_file):
        settings.without_effect((BrokerConfig, StoreConfig), WITHOUT_EFFECT, given)
    return given
