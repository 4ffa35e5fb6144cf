"""Options that name lakes, in directories or by a catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from rucola.cli.extras import require_spark
from rucola.cli.option_types import PathType
from rucola.files import is_remote

_CATALOG: Final = "rucola.catalog"


class LakeType(PathType):
    """A lake or a store: its directory as a Path; with `catalog_option`, an Archive for a lake in that catalog."""

    def __init__(self, *, exists: bool = True) -> None:
        super().__init__(exists=exists, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        catalog = ctx.meta.get(_CATALOG) if ctx is not None else None
        path = value if catalog is not None and is_remote(value) else super().convert(value, param, ctx)
        if catalog is None or (path is not value and _needs_no_catalog(path)):
            return path
        with require_spark():
            from rucola.spark.archive import Archive
        return Archive(path, catalog)


class ArchiveType(LakeType):
    """A lake, always as an Archive."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        lake = super().convert(value, param, ctx)
        with require_spark():
            from rucola.spark.archive import Archive
        return Archive(lake)


def _needs_no_catalog(path: Path) -> bool:
    return (path / "commitlog").is_dir() or (path / "_rucola" / "catalog.db").exists()


def _remember(ctx: click.Context, _: click.Parameter, catalog: str | None) -> None:
    ctx.meta[_CATALOG] = catalog


catalog_option: Final = click.option(
    "--catalog",
    metavar="NAME|URI",
    is_eager=True,  # known when the lakes are converted
    expose_value=False,
    callback=_remember,
    help="Iceberg catalog of the lake, by its name in .pyiceberg.yaml or its URI; by default it is in the lake.",
)
