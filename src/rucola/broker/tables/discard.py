"""Damaged config files: a start without them, if the operator allows that (discardDamagedConfig).

A file that cannot be read, like its .bak, prevents the start. With discardDamagedConfig=true it is renamed to
`<name>.damaged` and replaced by an empty one, or by its sound consumer offsets. An error in the log names what is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rucola.errors import RemoteProtocolError, StoreCorrupt
from rucola.files import sync_directory
from rucola.store.config_files import read_config, write_config

logger = logging.getLogger(__name__)

_LOSSES: Final = {
    "topics.json": "the settings of all topics; producers or operators create them again",
    "subscriptionGroup.json": "the settings of all consumer groups",
    "consumerOffset.json": "consumer offsets; groups without one begin where consumeFromWhere says",
    "lmqConsumerOffset.json": "all consumer offsets; groups begin where consumeFromWhere says",
    "consumerFilter.json": "the SQL92 filters of groups without members",
    "delayOffset.json": "which delayed messages are delivered; the index shows those with a unique key",
    "timer.json": "which timer messages are delivered; the index shows those with a unique key",
}


def load_or_discard(
    path: Path, load: Callable[[], None], *, is_allowed: bool, salvage: Callable[[Any], Any] | None = None
) -> None:
    """Call `load`; if the file is damaged and `is_allowed`, keep only what `salvage` returns and call `load` again.

    Raises StoreCorrupt with a remedy, and OSError.
    """
    try:
        load()
    except (StoreCorrupt, RemoteProtocolError) as error:
        why = error.why if isinstance(error, StoreCorrupt) else str(error)
        loss = _LOSSES[path.name]
        if not is_allowed:
            raise StoreCorrupt(
                path, 0, f"{why}. Restore it, or start once with discardDamagedConfig=true, which loses {loss}"
            ) from None
        sound = _salvaged(path, salvage)
        set_aside = _set_aside(path)
        logger.error("%s: %s; set aside as %s. Lost: %s", path, why, ", ".join(map(str, set_aside)), loss)
        # Written even if nothing is left: a missing lmqConsumerOffset.json would be read from consumerOffset.json.
        write_config(path, sound or {})
        load()


def _salvaged(path: Path, salvage: Callable[[Any], Any] | None) -> Any:
    if salvage is None:
        return None
    try:
        return salvage(read_config(path))
    except StoreCorrupt:
        return None


def _set_aside(path: Path) -> list[Path]:
    """Rename a file and its .bak; return the new names, of which none existed."""
    renamed: list[Path] = []
    for one in (path, path.with_name(path.name + ".bak")):
        if one.exists():
            names = (one.with_name(f"{one.name}.damaged{number or ''}") for number in range(1 << 31))
            target = next(name for name in names if not name.exists())
            one.rename(target)
            renamed.append(target)
    sync_directory(path.parent)
    return renamed
