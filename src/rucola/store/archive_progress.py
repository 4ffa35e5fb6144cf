"""Archive progress for deleteOnlyArchived: the physical offset up to which this store's log is archived.

An archive keeps one file, which it replaces atomically after each run. archiveProgressPath names it; the Spark
archive's is `<lake>/_rucola/progress.json`, or that of `archive --progress` for a lake that a catalog has:

    {"<archiveName>": {"physical_offset":      every record before this physical offset is archived,
                       "last_physical_offset": the last archived record's, null if there is none,
                       "last_msg_id":          its msgId, ...}}

archiveName is by default the path of the store directory, as for the archive job. An entry is used only if it does not
exceed the log's end and the last archived record, if the log still has it, has that msgId. Otherwise, and without a
readable file, nothing counts as archived.

The Spark archive also has `files.json` beside it, the list of its files of messages:

    {"rows": [{"path": relative to the lake, "size": bytes, "topic", "rows": number of messages,
               "least", "most": physical offsets, "brokers": first and last brokerName, null if unknown}, ...],
     "forgotten": files that were damaged, whose messages the lake has lost, as above,
     "location": the lake's if it is elsewhere, where the archive job has compared the files with the list, and does so
                 again at its next run}

Deletion cannot be undone, so an entry of the Spark archive is used only if every file with messages of this part of the
log exists in its size, unless it is elsewhere. Before a log file is deleted, its messages are counted by topic: the
files of the lake that reach into this part of the log must have as many, and none of them may be where the lake has
lost some (`missing_messages`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from rucola.errors import InvalidMessage, StoreError
from rucola.files import read_inside, size_inside
from rucola.message.record import decode
from rucola.message.topics import is_lmq, is_system_topic
from rucola.store.commit_log import CommitLog
from rucola.store.config import StoreConfig
from rucola.store.config_files import read_config
from rucola.store.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)


class _RowFile(msgspec.Struct):
    path: str
    topic: str
    rows: int
    size: int
    least: int
    most: int
    brokers: tuple[str, str] | None = None

    def may_have(self, name: str, begin: int, end: int) -> bool:
        """Return whether messages of a store between two physical offsets can be in the file."""
        is_of_store = self.brokers is None or self.brokers[0] <= name <= self.brokers[1]
        return is_of_store and self.least < end and self.most >= begin


class _Files(msgspec.Struct):
    rows: list[_RowFile]
    forgotten: list[_RowFile] = []
    location: str | None = None


def archived_physical_offset(config: StoreConfig, commit_log: CommitLog) -> int:
    """Return the physical offset up to which this log is archived; 0 if unknown, with a warning."""
    path = config.archive_progress_path
    assert path is not None, "deleteOnlyArchived was set without archiveProgressPath"
    name = _archive_name(config)
    try:
        progress = read_config(Path(path))
    except (StoreError, OSError) as error:
        log.warning("the archive's progress cannot be read, so nothing counts as archived: %s", error)
        return 0
    entry = progress.get(name) if isinstance(progress, dict) else None
    if not isinstance(entry, dict):
        log.warning("%s has no entry %s; set archiveName to the name under which the store is archived", path, name)
        return 0
    end = entry.get("physical_offset")
    if type(end) is not int or end > commit_log.end or not _is_of_this_log(entry, commit_log):
        log.warning("%s: the entry %s belongs to another store, so nothing counts as archived", path, name)
        return 0
    damage = _damage_of_lake(Path(path), name, commit_log.begin, end)
    if damage is not None:
        log.warning("nothing counts as archived: %s", damage)
        return 0
    return end


def missing_messages(
    config: StoreConfig, commit_log: CommitLog, queues: Mapping[tuple[str, int], ConsumeQueue], begin: int, end: int
) -> str | None:
    """Return which messages between two physical offsets the Spark archive cannot have, None if it can have all."""
    own = Path(config.archive_progress_path or "").parent
    if not _is_lake(Path(config.archive_progress_path or "")):
        return None
    files = msgspec.json.decode(read_inside(own.parent, own / "files.json"), type=_Files)
    name = _archive_name(config)
    for lost in files.forgotten:
        least, most = max(begin, lost.least), min(end, lost.most + 1)
        of_topic = (queue for (topic, _), queue in queues.items() if topic == lost.topic)
        if lost.may_have(name, begin, end) and any(_reaches_into(queue, least, most) for queue in of_topic):
            return (
                f"it has messages of {lost.topic}, and the lake {own.parent} has lost {lost.rows} of them: {lost.path}"
            )
    rows: Counter[str] = Counter()
    for file in files.rows:
        if file.may_have(name, begin, end):
            rows[file.topic] += file.rows
    units: dict[str, list[tuple[ConsumeQueue, int, int]]] = {}
    for (topic, _), queue in queues.items():
        if queue.max_physical_offset > begin and not (is_system_topic(topic) or is_lmq(topic)):
            first = queue.first_at_or_after(begin)
            units.setdefault(topic, []).append((queue, first, queue.first_at_or_after(end, first)))
    for topic, ranges in units.items():
        count = sum(last - first for _, first, last in ranges)
        if count > rows[topic]:
            # Rarely: an archive that may skip damaged records has fewer, and messages of other topics can be here, too.
            units_of = (queue.unit(each) for queue, *ends in ranges for each in range(*ends))
            count = sum(_is_message_of(topic, commit_log.record(physical_offset)) for physical_offset, *_ in units_of)
        if count > rows[topic]:
            return f"it has {count} messages of {topic}, and the lake {own.parent} at most {rows[topic]} of them"
    return None


def _archive_name(config: StoreConfig) -> str:
    return config.archive_name or str(Path(config.store_path_root_dir).absolute())


def _reaches_into(queue: ConsumeQueue, begin: int, end: int) -> bool:
    """Return whether a queue has messages between two physical offsets."""
    if queue.max_physical_offset <= begin:
        return False
    first = queue.first_at_or_after(begin)
    return queue.first_at_or_after(end, first) > first


def _is_message_of(topic: str, record: bytes | None) -> bool:
    try:
        return record is not None and decode(record, decompress=False).topic == topic
    except InvalidMessage:
        return False


def _is_lake(progress_path: Path) -> bool:
    return (progress_path.parent.name, progress_path.name) == ("_rucola", "progress.json")


def _damage_of_lake(progress_path: Path, name: str, begin: int, end: int) -> str | None:
    """Return why the lake cannot have this part of the log; None if it can, or is no Spark archive."""
    own = progress_path.parent
    if not _is_lake(progress_path):
        return None
    try:
        files = msgspec.json.decode(read_inside(own.parent, own / "files.json"), type=_Files)
        for file in files.rows if files.location is None else ():
            if file.may_have(name, begin, end):
                found = size_inside(own.parent, own.parent / file.path)
                if found != file.size:
                    return f"{own.parent / file.path} has {found} bytes instead of {file.size}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"{own / 'files.json'} cannot be read: {error}"
    except StoreError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _is_of_this_log(entry: dict[str, Any], commit_log: CommitLog) -> bool:
    last = entry.get("last_physical_offset")
    if type(last) is not int or last < commit_log.begin:
        return True
    record = commit_log.record(last)
    try:
        return record is not None and decode(record).msg_id == entry.get("last_msg_id")
    except InvalidMessage:
        return False
