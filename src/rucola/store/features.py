"""The features of a store directory: what other brokers and versions add to log, queues and index.

`find_features` recognizes them by files and directories, and writes nothing. A store is opened only if each of them is
read or rebuilt; otherwise its broker would serve a part of the messages as if it were all (`check_features`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from rucola.errors import StoreError
from rucola.message.topics import LMQ_PREFIX
from rucola.store.config import StoreConfig
from rucola.store.config_files import config_path, read_config
from rucola.store.consume_queue import ConsumeQueue
from rucola.store.directory_entries import REBUILD_DIRECTORY, STORE_ENTRIES
from rucola.store.mapped_file import MappedFileQueue
from rucola.store.multi_dispatch import MultiDispatch, further_units

_MAX_DEPTH: Final = 4

STORE_FORMAT: Final = 1
"""The format of what only Rucola writes into a store directory. Format 1 is not recorded."""

LMQ_OFFSET_FILE: Final = "lmqConsumerOffset.json"
_OFFSET_FILE: Final = "consumerOffset.json"

_VERSION_5: Final = {
    **dict.fromkeys(("timerwheel", "timerlog"), "timer messages"),
    **dict.fromkeys(("compaction", "compactionLog", "compactionCq"), "compacted topics"),
    "batchconsumequeue": "batch queues",
    "tieredstore": "tiered storage",
    "transaction": "transactions in RocksDB",
    "brokerIdentity": "a broker of a controller",
}
_VERSION_5_TABLES: Final = ("topics", "subscriptionGroups", "consumerOffsets", "rdb")
"""Directories of config/ in which RocketMQ 5 keeps tables in RocksDB."""


class Support(Enum):
    """The consequence of a feature when the store is opened."""

    READ = "read"
    NEEDS_SETTING = "needs a setting"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of a store: its name, path and support, and a sentence about that."""

    name: str
    path: Path
    support: Support
    note: str

    def __str__(self) -> str:
        return f"{self.name} in {self.path}: {self.note}"


def find_features(root: Path, commit_log: Path | None = None) -> list[Feature]:
    """Return the features of a store directory whose log is in `commit_log`; empty for Apache's defaults."""
    return [*_of_newer_rucola(root), *_of_version_4(root), *_of_version_5(root), *_unknown(root, commit_log)]


def check_features(config: StoreConfig) -> None:
    """Raise StoreError, which names every one, for features with which the store cannot be opened."""
    root = config.store_path_root_dir
    settings = {_LMQ_QUEUES: config.enable_multi_dispatch, _LMQ_OFFSETS: config.enable_lmq}
    refused = [
        feature
        for feature in find_features(root, config.commit_log_directory)
        if feature.support is Support.REFUSED
        or (feature.support is Support.NEEDS_SETTING and not settings[feature.name])
    ]
    if refused:
        raise StoreError(
            f"{root} is not opened, and nothing in it was changed. {'. '.join(map(str, refused))}",
            subject=refused[0].path,
        )


def check_units(queues: Iterable[ConsumeQueue], log: MappedFileQueue, mode: MultiDispatch) -> None:
    """Raise StoreError for queues whose records were not dispatched as configured. Writes nothing."""
    for queue in queues:
        name = (queue.topic, queue.queue_id)
        found = queue.further_record(log)
        if found is not None and name not in further_units(*found, mode):
            raise StoreError(
                f"{queue.files.directory} has units of messages of {found[1][0]}, which name it in "
                "INNER_MULTI_DISPATCH: the store is not opened, since these units would be erased. Set "
                "enableMultiDispatch and enableLmq as they were when it was written",
                subject=queue.files.directory,
            )


def _of_newer_rucola(root: Path) -> Iterator[Feature]:
    """A version that changes a format of its own files, and none of Apache's, says so in config/rucola.json."""
    document = read_config(path := config_path(root, "rucola"))
    found = document.get("format") if isinstance(document, dict) else None
    if document is not None and (type(found) is not int or found > STORE_FORMAT):
        note = (
            f"its format is {found!r}, and this Rucola reads up to {STORE_FORMAT}; open the directory with a newer one"
        )
        yield Feature("a newer Rucola", path, Support.REFUSED, note)


_LMQ_QUEUES: Final = "LMQ queues"
_LMQ_OFFSETS: Final = "LMQ consumer offsets"


def detect_multi_dispatch(root: Path) -> MultiDispatch:
    """Return how the records of a store were dispatched, if its files show it."""
    names = {feature.name for feature in _of_version_4(root)}
    if not names & {_LMQ_QUEUES, _LMQ_OFFSETS}:
        return MultiDispatch.OFF
    # With enableLmq, a light message queue has the id 0, not the record's.
    other_ids = any(path.name != "0" for path in (root / "consumequeue").glob(f"{LMQ_PREFIX}*/*"))
    return MultiDispatch.TOPICS if other_ids else MultiDispatch.LMQ


def _of_version_4(root: Path) -> Iterator[Feature]:
    if (path := root / "consumequeue_ext").is_dir():
        yield Feature(
            "ConsumeQueueExt",
            path,
            Support.READ,
            "units with an address in it are read with the tags code of their record; `rucola store rebuild` replaces "
            "them, and then the directory may be deleted",
        )
    if _children(root / "consumequeue", f"{LMQ_PREFIX}*"):
        yield Feature(
            _LMQ_QUEUES,
            root / "consumequeue",
            Support.NEEDS_SETTING,
            f"a record has units in the queues {LMQ_PREFIX}* too; set enableLmq=true and enableMultiDispatch=true",
        )
    if (path := root / "config" / LMQ_OFFSET_FILE).exists() and not (root / "config" / _OFFSET_FILE).exists():
        yield Feature(
            _LMQ_OFFSETS,
            path,
            Support.NEEDS_SETTING,
            "the offsets of all groups are in it, and not in consumerOffset.json; set enableLmq=true",
        )
    for path in _children(root, "dledger-*"):
        yield Feature(
            "DLedger",
            path,
            Support.REFUSED,
            "the messages are in a log of DLedger, which cannot be read; copy them through a broker of Apache, for "
            "example with a consumer that sends them to this one, and keep the directory until then",
        )


def _of_version_5(root: Path) -> Iterator[Feature]:
    note = "RocketMQ 5 has written it, and only stores of 4.x can be read; open the directory with RocketMQ 5"
    for name, kept in _VERSION_5.items():
        if (path := root / name).exists():
            yield Feature(f"RocketMQ 5, {kept}", path, Support.REFUSED, note)
    if (path := root / "consumequeue" / "CURRENT").is_file():
        yield Feature("RocketMQ 5, queues in RocksDB", path.parent, Support.REFUSED, note)
    for name in _VERSION_5_TABLES:
        if (path := root / "config" / name).is_dir():
            yield Feature("RocketMQ 5, tables in RocksDB", path, Support.REFUSED, note)


def _unknown(root: Path, commit_log: Path | None) -> Iterator[Feature]:
    known = STORE_ENTRIES | _VERSION_5.keys() | {REBUILD_DIRECTORY, "consumequeue_ext", "lost+found"}
    own = (commit_log, *commit_log.parents) if commit_log is not None else ()
    for path in _children(root, "*"):
        is_other = path.name not in known and path not in own and not path.name.startswith((".", "dledger-"))
        if is_other and path.is_dir() and _has_store_files(path):
            yield Feature(
                "an unknown directory",
                path,
                Support.REFUSED,
                "it has files named as those of a log or of RocksDB, and may hold messages; move it out of the store "
                "if it is not a part of it",
            )


def _has_store_files(directory: Path) -> bool:
    patterns = ("*/" * depth + name for depth in range(_MAX_DEPTH) for name in ("[0-9]" * 20, "*.sst"))
    return any(path.is_file() for pattern in patterns for path in directory.glob(pattern))


def _children(directory: Path, pattern: str) -> Iterable[Path]:
    return sorted(directory.glob(pattern)) if directory.is_dir() else ()
