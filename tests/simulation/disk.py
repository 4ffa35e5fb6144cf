"""A disk that loses its power: what a directory tree may look like afterwards.

While a `Disk` records, every call by which a program asks for a change of names or sizes, or for durability
(`os.open`, `mkdir`, `ftruncate`, `pwrite`, `replace`, `unlink`, `fsync`, `sync_pages` ...), is framed by two looks at
the whole tree. Stores into mapped memory pass by no call; the looks, and those that a test asks for, see what they
made of the files. So the disk knows, for each file and each directory, every content that it has had since it was
last synced, and a crash may leave

    of a file         each sector of 512 bytes as in any of these contents, and the size of any of them: pages reach the
                      disk in any order, early, late, torn or never
    of a directory    the names of any of these moments: journals keep the order of changes within a directory, and
                      say nothing about that between directories or between a name and the bytes behind it

A sync makes the content that the file has when it begins the only one; one of some pages does so for these, and for the
size. One that the kernel does by itself (`KernelFlush`) has done so when its result is asked for. A directory is synced
apart from its files.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from rucola.store import mapped_file
from rucola.store.kernel_flush import KernelFlush

SECTOR = 512

_CHANGES = [
    *["open", "mkdir", "rmdir", "ftruncate", "truncate", "posix_fallocate", "pwrite", "write"],
    *["replace", "rename", "unlink"],
]

_SYNCS = [(os, "fsync"), (os, "fdatasync"), (mapped_file, "sync_pages")]
"""Where a program waits for the disk."""


def without_waiting(patch: pytest.MonkeyPatch) -> None:
    """Let nothing wait for the disk, in tests that are not about that and would do it thousands of times."""
    for module, name in _SYNCS:
        patch.setattr(module, name, lambda *arguments: None)


class Disk:
    """The disk under the directory `root`, which is durable as it is when the disk is made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, list[bytes]] = {}
        self.names: dict[int, list[dict[str, int]]] = {}
        self._held: list[int] = []
        self._root = root.stat().st_ino
        self._is_looking = False
        self._submitted: tuple[int, bytes] | None = None
        self._one_at_a_time = threading.RLock()
        self.on_call: Callable[[], None] = lambda: None
        """Is called after each framed call: a moment at which the power may fail."""
        self.look()
        for versions in itertools.chain(self.contents.values(), self.names.values()):
            del versions[:-1]  # type: ignore[attr-defined]

    def look(self) -> None:
        """Take note of what every file and directory holds now."""
        self._look_at_directory(self.root, self._root)

    def _look_at_directory(self, path: Path, inode: int) -> None:
        names: dict[str, int] = {}
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):  # one seed, one crash
                number = names[entry.name] = entry.inode()
                if entry.is_dir():
                    self._note_new(self.names, number, entry.path, {})
                    self._look_at_directory(Path(entry.path), number)
                else:
                    self._note_new(self.contents, number, entry.path, b"")
                    with open(entry.path, "rb") as file:
                        content = file.read()
                    if self.contents[number][-1] != content:
                        self.contents[number].append(content)
        versions = self.names.setdefault(inode, [names])
        if versions[-1] != names:
            versions.append(names)

    def _note_new(self, table: dict[int, list[Any]], inode: int, path: str, nothing: object) -> None:
        """A file that nobody synced may be empty. It is held, so that its number is given to no other."""
        if inode not in table:
            table[inode] = [nothing]
            self._held.append(_open(path, os.O_RDONLY | os.O_CLOEXEC))

    def _synced(self, inode: int) -> None:
        for table in (self.contents, self.names):
            if inode in table:
                del table[inode][:-1]

    def _synced_pages(self, mapped: mmap.mmap, begin: int, end: int) -> None:
        versions = self.contents[os.stat(mapped_path(mapped)).st_ino]
        last = versions[-1]
        for number, version in enumerate(versions[:-1]):
            sized = version[: len(last)].ljust(len(last), b"\0")
            versions[number] = sized[:begin] + last[begin:end] + sized[end:]

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Frame the calls of this process while the block runs."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _CHANGES:
                patch.setattr(os, name, self._framed(getattr(os, name)))
            # Nothing waits for the disk below: this one is the disk.
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, self._framed(lambda fd: self._synced(os.fstat(fd).st_ino)))
            patch.setattr(mapped_file, "sync_pages", self._framed(self._synced_pages))
            submit, result = KernelFlush.submit, KernelFlush.result

            def submitted(kernel: KernelFlush, fd: int) -> bool:
                inode = os.fstat(fd).st_ino
                self._submitted = inode, self.contents[inode][-1]
                return submit(kernel, fd)

            def ended(kernel: KernelFlush) -> OSError | None:
                assert self._submitted is not None
                inode, content = self._submitted
                versions = self.contents[inode]
                del versions[: versions.index(content)]
                return result(kernel)

            patch.setattr(KernelFlush, "submit", self._framed(submitted))
            patch.setattr(KernelFlush, "result", self._framed(ended))
            yield

    def _framed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def framed(*arguments: Any, **named: Any) -> Any:
            with self._one_at_a_time:
                return call(*arguments, **named) if self._is_looking else watched(*arguments, **named)

        def watched(*arguments: Any, **named: Any) -> Any:
            self._is_looking = True
            try:
                self.look()
                result = call(*arguments, **named)
                self.look()
                self.on_call()  # what it opens itself is no call of the program
            finally:
                self._is_looking = False
            return result

        return framed

    def crash(self, random: Random, to: Path, kind: str | None = None) -> None:
        """Make `to` a tree that the power cut may leave. Changes nothing here.

        `kind` is "nothing more" than what was synced, "everything", or "any" state between; without it one is thrown.
        """
        is_looking, self._is_looking = self._is_looking, True
        kind = kind or random.choice(["nothing more", "everything", "any", "any", "any"])
        self._restore(self._root, to, random, kind)
        self._is_looking = is_looking

    def _restore(self, inode: int, to: Path, random: Random, kind: str) -> None:
        to.mkdir()
        for name, number in _choose(self.names[inode], random, kind).items():
            if number in self.names:
                self._restore(number, to / name, random, kind)
            else:
                (to / name).write_bytes(_torn(self.contents[number], random, kind))

    def close(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


class SyncedDisk(Disk):
    """A disk that looks at nothing but what is synced, for runs of hours, and for several machines below its root.

    Of each file it knows the content of the last sync; a crash mixes that with what the file has now. So it never
    leaves a content that was overwritten in between, and costs no more than a copy of what is synced.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._holds: dict[int, int] = {}
        self._mappings: WeakKeyDictionary[mmap.mmap, tuple[str, int]] = WeakKeyDictionary()

    def _note_new(self, table: dict[int, list[Any]], inode: int, path: str, nothing: object) -> None:
        if inode not in table:
            table[inode] = [nothing]
            self._holds[inode] = _open(path, os.O_RDONLY | os.O_CLOEXEC)

    def recorded(self, patch: pytest.MonkeyPatch) -> None:
        """Take note of syncs for as long as the patches last; the caller flushes by the kernel with `snapshot`."""
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self.sync)
        patch.setattr(mapped_file, "sync_pages", self.sync_pages)

    def sync(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not path.startswith(str(self.root)):
            return
        if os.path.isdir(path):
            self._sync_names(inode, Path(path))
        else:
            self.became_durable(inode, *self.snapshot(fd))

    def snapshot(self, fd: int) -> tuple[str, bytes]:
        """The path and content of a file, as a flush that begins now finds them."""
        path = f"/proc/self/fd/{fd}"
        with open(path, "rb") as file:
            return path, file.read()

    def became_durable(self, inode: int, path: str, content: bytes) -> None:
        """Take note that a flush that began with this content has ended."""
        self._note_new(self.contents, inode, path, b"")
        self.contents[inode] = [content]

    def sync_pages(self, mapped: mmap.mmap, begin: int, end: int) -> None:
        if mapped not in self._mappings:
            self._mappings[mapped] = _mapping(mapped)
        path, inode = self._mappings[mapped]
        if not path.startswith(str(self.root)):
            return
        self._note_new(self.contents, inode, path, b"")
        last = self.contents[inode][0]
        sized = last.ljust(len(mapped), b"\0")
        self.contents[inode] = [sized[:begin] + mapped[begin:end] + sized[end:]]

    def _sync_names(self, inode: int, path: Path) -> None:
        with os.scandir(path) as entries:
            names = {entry.name: (entry.inode(), entry.is_dir()) for entry in entries}
        for name, (number, is_directory) in sorted(names.items()):
            if is_directory:
                self._note_new(self.names, number, str(path / name), {})
            else:
                self._note_new(self.contents, number, str(path / name), b"")
        before = self.names.get(inode, [{}])[0]
        self.names[inode] = [{name: number for name, (number, _) in sorted(names.items())}]
        for number in sorted(set(before.values()) - set(self.names[inode][0].values())):
            self.contents.pop(number, None)
            if (held := self._holds.pop(number, None)) is not None:
                os.close(held)

    def crash_of(self, directory: Path, random: Random, to: Path, kind: str | None = None) -> str:
        """Make `to` a tree that a power cut may leave of the directory of one machine, and let it be durable."""
        kind = kind or random.choice(["nothing more", "everything", "any", "any", "any"])
        inode = directory.stat().st_ino
        self.names.setdefault(inode, [{}])
        self._look_at_directory(directory, inode)
        self._restore(inode, to, random, kind)
        self.settle(to)
        return kind

    def copy(self, directory: Path, to: Path) -> None:
        """Let the copy of a directory be as durable as that is."""
        copies = {directory.stat().st_ino: to.stat().st_ino}
        paths = {}
        for path in sorted(directory.rglob("*")):
            copied = to / path.relative_to(directory)
            copies[path.stat().st_ino] = copied.stat().st_ino
            paths[path.stat().st_ino] = copied
        for inode, path in paths.items():
            if path.is_dir():
                self._note_new(self.names, copies[inode], str(path), {})
            else:
                self._note_new(self.contents, copies[inode], str(path), b"")
                self.contents[copies[inode]] = self.contents.get(inode, [b""])[:1]
        for inode, copied_inode in copies.items():
            if inode in self.names:
                names = self.names[inode][0]
                self.names[copied_inode] = [{name: copies.get(number, number) for name, number in names.items()}]

    def settle(self, directory: Path) -> None:
        """Let a directory be durable as it is."""
        inode = directory.stat().st_ino
        self.names.setdefault(inode, [{}])
        self._look_at_directory(directory, inode)
        self._forget_older(inode)

    def _forget_older(self, inode: int) -> None:
        del self.names[inode][:-1]
        for number in self.names[inode][0].values():
            if number in self.names:
                self._forget_older(number)
            else:
                del self.contents[number][:-1]

    def close(self) -> None:
        for descriptor in self._holds.values():
            os.close(descriptor)


_open = os.open


def mapped_path(mapped: mmap.mmap) -> str:
    """Which file the kernel has mapped there."""
    return _mapping(mapped)[0]


def _mapping(mapped: mmap.mmap) -> tuple[str, int]:
    """The path and the inode of a mapped file."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    with open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            begin, _, end = line.partition(" ")[0].partition("-")
            if int(begin, 16) <= address < int(end, 16):
                fields = line.rstrip("\n").split(maxsplit=5)
                return fields[5], int(fields[4])
    raise AssertionError("not mapped")


def _choose(versions: list[Any], random: Random, kind: str) -> Any:
    return {"nothing more": versions[0], "everything": versions[-1]}.get(kind, random.choice(versions))


def _torn(versions: list[bytes], random: Random, kind: str) -> bytes:
    if len(versions) == 1 or kind != "any":
        return _choose(versions, random, kind)
    size = len(random.choice(versions))
    padded = [version.ljust(size, b"\0") for version in versions]
    # Most sectors never change; only the others are thrown for. Late contents are as likely as the first.
    content = bytearray(padded[-1][:size])
    for begin in range(0, size, SECTOR):
        choices = {version[begin : begin + SECTOR] for version in padded}
        if len(choices) > 1:
            ends = [padded[0], padded[-1], random.choice(padded)]
            content[begin : begin + SECTOR] = random.choice(ends)[begin : begin + SECTOR]
    return bytes(content[:size])
