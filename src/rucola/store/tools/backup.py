"""Backup and restore of a store directory, also of one that a broker serves.

A backup is a directory or a place in an object store:

    manifest.json                         what the backup consists of; replaced last, in one step
    commitlog/<begin>-<end>               a piece of the log: the bytes between two physical offsets of one log file
    files/<digest>-<name>                 a file of `config/`, or the epoch file

The order makes it consistent. Progress (consumer offsets, delivered messages) is read first, then the log, then the
other tables: progress is never ahead of the log, and no message is in the log whose topic is not in the tables. The log
ends before the first record that is not complete.

The log only grows, so the next backup into the same place copies what came since then, as new pieces. A power cut may
have cut off the end of a log; therefore each piece has a digest of its last bytes, and pieces that differ are copied
again. Pieces of log files that the store has deleted are deleted after the manifest is replaced. A backup that is
interrupted leaves the previous one as it was.

ConsumeQueues, index and checkpoint are not part of a backup: a restore builds them from the log. `coordination.json`
and `role.json` are left out as well: a broker with a restored log has to follow before it is elected, and its role is
the one of its configuration.

No counterpart in Apache RocketMQ.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import IO, Any, Final, Protocol

import msgspec

from rucola import fastjson
from rucola.errors import InvalidMessage, RemoteProtocolError, StoreError
from rucola.files import (
    FILE_MODE,
    local_path,
    make_directory,
    open_inside,
    read_inside,
    replace_file,
    replacing,
    sync_directory,
)
from rucola.message import sysflag
from rucola.message.record import decode
from rucola.store.config import StoreConfig
from rucola.store.config_files import COORDINATION
from rucola.store.consume_queue import UNIT_SIZE
from rucola.store.directory_lock import check_store_directory, is_served
from rucola.store.directory_reader import OPEN_ATTEMPTS
from rucola.store.epoch_file import EPOCH_FILE
from rucola.store.mapped_file import MappedFile, MappedFileQueue, file_name, file_paths
from rucola.store.scan import RecordRun, scan
from rucola.store.tools.progress import ProgressCallback
from rucola.store.tools.rebuild import RebuildResult, build, damaged_log, detect_config, write_checkpoint
from rucola.system_calls import OPEN_FLAGS, sync_all

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
"""The version of the manifest and of what it names."""

_PROGRESS: Final = frozenset({"consumerOffset.json", "lmqConsumerOffset.json", "delayOffset.json", "timer.json"})
_LEFT_OUT: Final = frozenset({f"{COORDINATION}.json", "role.json"})
_EDGE: Final = 4096
_STEP: Final = 4 << 20
_POLLS: Final = 200
_POLL_S: Final = 0.01


class BackupStorage(Protocol):
    """A directory or object store; names are relative to its location and have `/` between their parts."""

    @property
    def location(self) -> str: ...

    def reading(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file. Raises FileNotFoundError."""

    def writing(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Create or replace a file, which is durable at the end of the block."""

    def files(self, directory: str) -> Iterable[Any]:
        """Return all files below a directory, which may be missing; each has a `path`."""

    def delete(self, path: str) -> None:
        """Delete a file, which may be missing."""


@dataclass(frozen=True)
class _Found:
    path: str


class BackupDirectory:
    """A backup in a directory of this machine, or of a file system that several machines share."""

    def __init__(self, root: str | Path) -> None:
        self._root = local_path(root)

    @property
    def location(self) -> str:
        return str(self._root)

    @contextmanager
    def reading(self, path: str) -> Iterator[IO[bytes]]:
        with open(open_inside(self._root, self._root / path), "rb") as file:
            yield file

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        make_directory((self._root / path).parent)
        with replacing(self._root / path) as file:
            yield file

    def files(self, directory: str) -> Iterator[_Found]:
        for parent, _, names in os.walk(self._root / directory):
            yield from (_Found(str((Path(parent) / name).relative_to(self._root))) for name in names)

    def delete(self, path: str) -> None:
        (self._root / path).unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other backups away: they would delete what this one has not named yet. Raises StoreError."""
        make_directory(self._root)
        descriptor = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise StoreError(f"another backup into {self._root} is running", subject=self._root) from None
        finally:
            os.close(descriptor)


class StoredPiece(msgspec.Struct, frozen=True, rename="camel"):
    """A piece of the log: physical offsets, SHA-256 of its bytes, and of its first and last 4,096 bytes."""

    begin: int
    end: int
    sha256: str = ""
    head: str = ""
    tail: str = ""
    generation: int = 0
    """Above 0 if the backup before has other bytes between the same offsets."""

    @property
    def path(self) -> str:
        suffix = f"-{self.generation}" if self.generation else ""
        return f"commitlog/{file_name(self.begin)}-{file_name(self.end)}{suffix}"

    @property
    def size(self) -> int:
        return self.end - self.begin


class StoredFile(msgspec.Struct, frozen=True, rename="camel"):
    """A small file: its name below the store directory, its size and SHA-256."""

    name: str
    size: int
    sha256: str

    @property
    def path(self) -> str:
        return f"files/{self.sha256[:16]}-{self.name.rpartition('/')[2]}"


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """What a backup consists of; the fields of `manifest.json`."""

    version: int
    taken_ms: int
    begin: int
    end: int
    """The log is whole between these physical offsets."""
    last_store_timestamp: int
    settings: Mapping[str, int | bool]
    """File sizes and kinds of queues, as keys of broker.conf."""
    log: tuple[StoredPiece, ...]
    files: tuple[StoredFile, ...]


@dataclass(slots=True)
class BackupResult:
    """The outcome of a backup: the fields of `rucola store backup --json`. Sizes are in bytes."""

    source: Path
    out: str
    begin: int
    end: int
    copied: int
    """Bytes that this backup has copied."""
    unchanged: int
    """Bytes of the log that an earlier backup had copied."""
    was_served: bool
    unsaved: tuple[int, int] | None = None
    """Physical offsets between which the store had deleted its log before any backup."""


@dataclass(slots=True)
class RestoreResult:
    """The outcome of a restore: the fields of `rucola store restore --json`."""

    source: str
    out: Path
    begin: int
    end: int
    taken_ms: int
    files: list[str]
    rebuilt: RebuildResult


_SETTINGS: Final = {
    "mappedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mappedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "maxHashSlotNum": "max_hash_slot_num",
    "maxIndexNum": "max_index_num",
    "enableMultiDispatch": "enable_multi_dispatch",
    "enableLmq": "enable_lmq",
}


# backup --------------------------------------------------------------------------------------------------------------


def backup(
    store: str | Path,
    out: BackupStorage,
    *,
    settings: StoreConfig | None = None,
    now_ms: int,
    progress: ProgressCallback | None = None,
) -> BackupResult:
    """Write a backup of a store directory, or bring the one in `out` up to date.

    Args:
        settings: file sizes and the place of the log; by default those that the files show (see `detect_config`).
        progress: called as the log is read and copied.

    Raises StoreCorrupt if the log is damaged, StoreError if `out` is the backup of another store or another backup into
    it is running, and OSError; then the backup in `out` is as before.
    """
    with out.locked() if isinstance(out, BackupDirectory) else nullcontext():
        return _backup(local_path(store), out, settings, now_ms, progress)


def _backup(
    store: Path, out: BackupStorage, settings: StoreConfig | None, now_ms: int, progress: ProgressCallback | None
) -> BackupResult:
    settings = settings or detect_config(store)
    check_store_directory(store, log := settings.commit_log_directory)
    was_served, before = is_served(store), _read_manifest(out, may_lack=True)
    first = dict(_config_files(store, _PROGRESS.__contains__))
    files = _open_log(log)
    try:
        kept = _kept_pieces(files, before, out)
        begin = kept[-1].end if kept else files.begin
        end, timestamp = _consistent_end(files, begin, store if was_served else None, _half(progress, 0))
        if before is not None and kept and not timestamp:
            timestamp = before.last_store_timestamp
        tables = first | dict(_config_files(store, lambda name: name not in _PROGRESS | _LEFT_OUT))
        used = set() if before is None else {piece.path for piece in before.log}
        pieces = list(_copy_log(files, begin, end, out, used, _half(progress, 1)))
        stored = [_store_file(out, name, content, before) for name, content in sorted(tables.items())]
        shown = {key: getattr(settings, name) for key, name in _SETTINGS.items()}
        shown["mappedFileSizeCommitLog"] = files.file_size or settings.mapped_file_size_commit_log
        log_begin = files.begin
    finally:
        files.close()
    log_pieces = (*kept, *pieces)
    manifest = Manifest(FORMAT, now_ms, log_begin, end, timestamp, shown, log_pieces, tuple(stored))
    if _read_manifest(out, may_lack=True) != before:  # an object store has no lock
        raise StoreError(f"another backup into {out.location} has ended meanwhile: begin again", subject=out.location)
    _write(out, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)))
    named = {piece.path for piece in log_pieces} | {each.path for each in stored}
    there = {found.path for found in chain(out.files("commitlog"), out.files("files"))}
    if named - there:
        raise StoreError(
            f"another backup into {out.location} has deleted {min(named - there)}: begin again, one at a time",
            subject=out.location,
        )
    for path in there - named:
        out.delete(path)
    unsaved = (before.end, log_begin) if before is not None and not kept and before.end < log_begin else None
    return BackupResult(
        store, out.location, log_begin, end, sum(piece.size for piece in pieces), sum(piece.size for piece in kept),
        was_served, unsaved,
    )  # fmt: skip


def _half(progress: ProgressCallback | None, number: int) -> ProgressCallback | None:
    if progress is None:
        return None
    return lambda done, total: progress(number * total + done, 2 * total)


def _config_files(store: Path, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield the wanted files of `config/`, or their .bak if Apache's broker is writing them; and the epoch file."""
    names = {path.name.removesuffix(".bak") for path in (store / "config").glob("*.json*") if path.suffix != ".tmp"}
    for name in sorted(filter(is_wanted, names)):
        for candidate in (name, f"{name}.bak"):
            with suppress(FileNotFoundError, RemoteProtocolError):
                content = read_inside(store, store / "config" / candidate)
                fastjson.loads(content)
                yield f"config/{name}", content
                break
    if is_wanted(EPOCH_FILE):
        with suppress(FileNotFoundError):
            yield EPOCH_FILE, read_inside(store, store / EPOCH_FILE)


def _open_log(log: Path) -> MappedFileQueue:
    """Map all files of the log: retention may delete them afterwards."""
    for attempt in range(1, OPEN_ATTEMPTS + 1):
        try:
            files = MappedFileQueue.open(log)
            for file in files:
                _ = file.map
            return files
        except FileNotFoundError:
            if attempt == OPEN_ATTEMPTS:
                raise
    raise AssertionError("unreachable")


def _kept_pieces(files: MappedFileQueue, before: Manifest | None, out: BackupStorage) -> list[StoredPiece]:
    """Return the pieces of the backup before that the log still begins with."""
    if before is None:
        return []
    kept = [piece for piece in before.log if piece.begin >= files.begin]
    if kept and _head_of(files, kept[0]) != kept[0].head:
        raise StoreError(
            f"{out.location} has the backup of another log, up to {before.end}; give another place, or delete it there",
            subject=out.location,
        )
    while kept and _tail_of(files, kept[-1]) != kept[-1].tail:
        kept.pop()
    return kept if kept and kept[0].begin == files.begin else []


def _head_of(files: MappedFileQueue, piece: StoredPiece) -> str:
    return _digest(files, piece.begin, min(piece.begin + _EDGE, piece.end))


def _tail_of(files: MappedFileQueue, piece: StoredPiece) -> str:
    return _digest(files, max(piece.begin, piece.end - _EDGE), piece.end)


def _digest(files: MappedFileQueue, begin: int, end: int) -> str:
    file = files.find(begin)
    return hashlib.sha256(file.map[begin - file.begin : end - file.begin]).hexdigest() if file is not None else ""


def _consistent_end(
    files: MappedFileQueue, begin: int, store: Path | None, progress: ProgressCallback | None
) -> tuple[int, int]:
    """Return the end of the log and the store time of its last message, 0 if there is none after `begin`.

    The last record of a store that is served may be half written, without damage to what its CRC covers: it counts once
    it is in its queue. All messages that were acknowledged before the call are, or will be at once.
    """
    last: tuple[RecordRun, int] | None = None
    end, timestamp, former = begin, 0, 0
    for item in scan(files, begin):
        if isinstance(item, RecordRun):
            last, end = (item, int(item.positions[-1])), item.end
            former = int(item.store_timestamps[-2]) if len(item.store_timestamps) > 1 else timestamp
            timestamp = int(item.store_timestamps[-1])
            if progress is not None:
                progress(end - files.begin, files.end - files.begin)
        elif item.damage is not None and (store is None or _goes_on(files, item.physical_offset)):
            raise damaged_log(files, item.physical_offset, item.damage)
        else:
            end = max(end, item.physical_offset)
    if last is None or store is None or end != last[0].end:
        return end, timestamp
    run, position = last
    for _ in range(_POLLS):
        if _is_dispatched(store, run.file, position):
            return end, timestamp
        threading.Event().wait(_POLL_S)
    return run.file.begin + position, former


def _goes_on(files: MappedFileQueue, physical_offset: int) -> bool:
    """Return whether the log has a later file with messages, so that damage is not a record that is being written."""
    return any(any(file.map[:8]) for file in files if file.begin > physical_offset)


def _is_dispatched(store: Path, file: MappedFile, position: int) -> bool:
    try:
        message = decode(file.map, position, decompress=False)
    except InvalidMessage:
        return False
    if message.sys_flag & sysflag.TRANSACTION_PREPARED:  # Apache's; in no queue
        return True
    queue = store / "consumequeue" / message.topic / str(message.queue_id)
    try:
        size = file_paths(queue)[0].stat().st_size
        at = message.queue_offset * UNIT_SIZE
        with open(open_inside(store, queue / file_name(at - at % size)), "rb") as units:
            units.seek(at % size)
            return units.read(8) == message.physical_offset.to_bytes(8, "big")
    except (IndexError, FileNotFoundError, ZeroDivisionError):
        return False


def _copy_log(
    files: MappedFileQueue, begin: int, end: int, out: BackupStorage, used: set[str], progress: ProgressCallback | None
) -> Iterator[StoredPiece]:
    """Copy the log in pieces, with names that are not `used`: the backup before stays whole until the end."""
    for file in files:
        first, last = max(begin, file.begin), min(end, file.end)
        if first >= last:
            continue
        digest, piece = hashlib.sha256(), StoredPiece(first, last)
        while piece.path in used:
            piece = StoredPiece(first, last, generation=piece.generation + 1)
        with memoryview(file.map) as mapped, out.writing(piece.path) as target:
            for at in range(first, last, _STEP):
                with mapped[at - file.begin : min(at + _STEP, last) - file.begin] as part:
                    digest.update(part)
                    target.write(part)
                if progress is not None:
                    progress(at - files.begin, files.end - files.begin)
        edges = _head_of(files, piece), _tail_of(files, piece)
        yield StoredPiece(first, last, digest.hexdigest(), *edges, piece.generation)


def _store_file(out: BackupStorage, name: str, content: bytes, before: Manifest | None) -> StoredFile:
    stored = StoredFile(name, len(content), hashlib.sha256(content).hexdigest())
    if before is None or stored not in before.files:
        _write(out, stored.path, content)
    return stored


def _write(out: BackupStorage, path: str, content: bytes) -> None:
    with out.writing(path) as target:
        target.write(content)


def _read_manifest(source: BackupStorage, *, may_lack: bool) -> Manifest | None:
    where = f"{source.location}/{MANIFEST}"
    try:
        with source.reading(MANIFEST) as file:
            content = file.read()
    except FileNotFoundError:
        if may_lack:
            return None
        raise StoreError(f"{source.location} is no backup: it has no {MANIFEST}", subject=source.location) from None
    try:
        found = msgspec.json.decode(content)
        if isinstance(found, dict) and found.get("version") != FORMAT:
            raise StoreError(
                f"{where} has version {found.get('version')!r}, and this Rucola reads version {FORMAT}: use the "
                "Rucola that wrote it, or a newer one",
                subject=source.location,
            )
        manifest = msgspec.convert(found, Manifest)
        ends = [manifest.begin, *(piece.end for piece in manifest.log)]
        names = [stored.name for stored in manifest.files]
        begins = [*(piece.begin for piece in manifest.log), manifest.end]
        if begins != ends or any(e <= b for b, e in pairwise(ends)):
            raise ValueError("its pieces of the log do not follow each other")
        if any(name != EPOCH_FILE and name != f"config/{Path(name).name}" for name in names):
            raise ValueError("it names a file elsewhere")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise StoreError(f"{where} is damaged: {error}", subject=source.location) from None
    return manifest


# restore -------------------------------------------------------------------------------------------------------------


def restore(source: BackupStorage, out: str | Path, *, progress: ProgressCallback | None = None) -> RestoreResult:
    """Write a store directory from a backup to `out`, which must be missing or empty.

    Every digest is compared, so a damaged backup is refused. The directory gets its name when all of it is on disk.

    Raises StoreError, which names a missing or damaged file of the backup, and OSError; then `out` is as before.
    """
    out = local_path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise StoreError(f"{out} is not empty; give a new directory", subject=out)
    manifest = _read_manifest(source, may_lack=False)
    assert manifest is not None
    settings = StoreConfig(out)
    for key, value in manifest.settings.items():
        setattr(settings, _SETTINGS[key], value)
    staging = out.with_name(out.name + ".tmp")
    if staging.exists():
        shutil.rmtree(staging)
    try:
        make_directory(log := staging / "commitlog")
        _write_log(source, manifest, log, settings.mapped_file_size_commit_log, _half(progress, 0))
        for stored in manifest.files:
            replace_file(staging / stored.name, b"".join(_checked(source, stored.path, stored.size, stored.sha256)))
        rebuilt = RebuildResult(out)
        if manifest.log:
            rebuilt = build(log, staging, settings, _half(progress, 1))
        write_checkpoint(staging, manifest.last_store_timestamp, settings.max_hash_slot_num)
        (staging / "lock").touch(FILE_MODE)
        if out.exists():
            out.rmdir()
        staging.rename(out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    sync_directory(out.parent)
    rebuilt.path = out
    names = [stored.name for stored in manifest.files]
    return RestoreResult(source.location, out, manifest.begin, manifest.end, manifest.taken_ms, names, rebuilt)


def _write_log(
    source: BackupStorage, manifest: Manifest, log: Path, file_size: int, progress: ProgressCallback | None
) -> None:
    for piece in manifest.log:
        begin = piece.begin - piece.begin % file_size
        descriptor = os.open(log / file_name(begin), os.O_RDWR | os.O_CREAT | OPEN_FLAGS, FILE_MODE)
        with open(descriptor, "r+b") as file:
            os.ftruncate(descriptor, file_size)
            file.seek(piece.begin - begin)
            done = piece.begin - manifest.begin
            for part in _checked(source, piece.path, piece.size, piece.sha256):
                file.write(part)
                done += len(part)
                if progress is not None:
                    progress(done, manifest.end - manifest.begin)
            file.flush()
            sync_all(descriptor)
    sync_directory(log)


def _checked(source: BackupStorage, path: str, size: int, sha256: str) -> Iterator[bytes]:
    """Yield the bytes of a file. Raises StoreError unless they have this size and digest."""
    digest, found = hashlib.sha256(), 0
    try:
        with source.reading(path) as file:
            while part := file.read(_STEP):
                digest.update(part)
                found += len(part)
                yield part
    except FileNotFoundError:
        raise StoreError(f"the backup is damaged: {source.location}/{path} is missing", subject=path) from None
    if (found, digest.hexdigest()) != (size, sha256):
        why = f"it has {found} bytes instead of {size}" if found != size else "its bytes have changed"
        raise StoreError(f"the backup is damaged: {source.location}/{path}: {why}", subject=path)
