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
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from rucola.errors import InvalidMessage, StoreCorrupt
from rucola.message.record import decode
from rucola.store.commit_log import CommitLog
from rucola.store.config import StoreConfig
from rucola.store.config_files import read_config

log = logging.getLogger(__name__)


def archived_end(config: StoreConfig, commit_log: CommitLog) -> int:
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
    return end


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
