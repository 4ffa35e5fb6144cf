"""How far an archive has this store's log: what is asked before a file goes that must not be lost.

The archive keeps one file for everyone who reads it, replaced as a whole after each run; for the Spark archive that is
`<lake>/_rucola/progress.json`, and archiveProgressPath says where it lies:

    {"<archiveName>": {"physical_offset":      every record before this physical offset is archived,
                       "last_physical_offset": where the last archived record lies, null for none,
                       "last_msg_id":          its msgId, ...}}

archiveName is by default the path of the store directory, as the archive job names a store that it is not given a name
for. An entry is believed only where it can be about this log: it does not reach beyond its end, and the last archived
record, while the log still has it, is the one that it names. Otherwise nothing counts as archived. A file that is
missing or cannot be read says nothing either, and is no reason to stop.

The Spark archive also has `<lake>/_rucola/snapshot.json`, which lists its files of messages:

    {"rows": [{"path": relative to the lake, "size": bytes, "least", "most": physical offsets}, ...], ...}

Deletion cannot be undone, so an entry of the Spark archive is believed only while the lake still has what it claims:
the snapshot can be read, and every file with messages of this part of the log is there in its size. This takes a `stat`
for each of these files.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import msgspec

from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message.record import decode
from rucola.store.commit_log import CommitLog
from rucola.store.config import StoreConfig
from rucola.store.config_files import read_config

log = logging.getLogger(__name__)


class _RowFile(msgspec.Struct):
    """A file of messages in a lake."""

    path: str
    size: int
    least: int
    most: int


class _Snapshot(msgspec.Struct):
    """The part of a lake's snapshot that matters here."""

    rows: list[_RowFile]


def archived_physical_offset(config: StoreConfig, commit_log: CommitLog) -> int:
    """Return the physical offset up to which this log is archived; 0 where nobody says so."""
    path = config.archive_progress_path
    assert path is not None, "deleteOnlyArchived was set without archiveProgressPath"
    name = config.archive_name or str(Path(config.store_path_root_dir).absolute())
    try:
        progress = read_config(Path(path))
    except (StoreCorrupt, OSError) as error:
        log.warning("what is archived is not known: %s", error)
        return 0
    entry = progress.get(name) if isinstance(progress, dict) else None
    if not isinstance(entry, dict):
        log.warning("%s says nothing of %s; set archiveName to the name under which it is archived", path, name)
        return 0
    end = entry.get("physical_offset")
    if type(end) is not int or end > commit_log.end or not _is_of_this_log(entry, commit_log):
        log.warning("%s: the entry %s is about another store; nothing counts as archived", path, name)
        return 0
    damage = _damage_of_lake(Path(path), commit_log.begin, end)
    if damage is not None:
        log.warning("nothing counts as archived: %s; see `rucola pipeline repair`", damage)
        return 0
    return end


def _damage_of_lake(progress_path: Path, begin: int, end: int) -> str | None:
    """Return why a lake cannot have this part of a log; None if it can, or if the archive is another than Spark's."""
    own = progress_path.parent
    if (own.name, progress_path.name) != ("_rucola", "progress.json"):
        return None
    try:
        snapshot = msgspec.json.decode((own / "snapshot.json").read_bytes(), type=_Snapshot)
        for file in snapshot.rows:
            if file.least < end and file.most >= begin:
                found = os.stat(own.parent / file.path).st_size
                if found != file.size:
                    return f"{own.parent / file.path} has {found} bytes instead of {file.size}"
    except msgspec.MsgspecError as error:
        return f"{own / 'snapshot.json'} cannot be read: {error}"
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _is_of_this_log(entry: dict[str, Any], commit_log: CommitLog) -> bool:
    """Tell whether the last archived record is what the log has there, as far as it still goes back."""
    last = entry.get("last_physical_offset")
    if type(last) is not int or last < commit_log.begin:
        return True
    record = commit_log.record(last)
    try:
        return record is not None and decode(record).msg_id == entry.get("last_msg_id")
    except InvalidMessage:
        return False
