"""Faults of the system under a store: calls that fail, limits of the process, and a small disk."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from mmap import mmap
from pathlib import Path
from typing import Any

import pytest

from rucola.store import mapped_file
from rucola.store.kernel_flush import KernelFlush

SHARED = "shared-rocketmq"
"""Part of the path of that broker's store, and of the names of the threads that flush it."""


@contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    """Let this process have no more than that of a resource. Python ignores SIGXFSZ, so a write fails with EFBIG."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def _is_of_shared_broker() -> bool:
    """Whether a flush of the broker that all tests of a run share is calling: no fault of a test may reach it."""
    return SHARED in threading.current_thread().name


def patch_sync_pages(monkeypatch: pytest.MonkeyPatch, sync_pages: Callable[[mmap, int, int], None]) -> None:
    """Let stores flush pages by another function."""
    real = mapped_file.sync_pages

    def patched(mapped: mmap, begin: int, end: int) -> None:
        (real if _is_of_shared_broker() else sync_pages)(mapped, begin, end)

    monkeypatch.setattr(mapped_file, "sync_pages", patched)


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, call: str, number: int, after: int = 0) -> Iterator[None]:
    """Let a call of the system, or `sync_pages`, fail with that error, from the call after the first `after` on."""
    module = mapped_file if call == "sync_pages" else os
    real: Callable[..., Any] = getattr(module, call)
    left = after

    def fail(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        if _is_of_shared_broker():
            return real(*arguments, **named)
        left -= 1
        if left < 0:
            raise OSError(number, os.strerror(number))
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(module, call, fail)
        yield


@contextmanager
def small_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch, size: str = "1m", ballast: int = 300_000
) -> Iterator[Callable[[], object]]:
    """A disk of `size` at `path`, `ballast` bytes of it taken; yields what makes space there.

    For a user who may not mount one, a disk that refuses after so many windows.
    """
    path.mkdir()
    with ExitStack() as cleaning:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]
        if shutil.which("mount") and subprocess.run(mount, capture_output=True).returncode == 0:
            cleaning.callback(subprocess.run, ["umount", "--lazy", path], check=True)
            file = path / "ballast"
            file.write_bytes(bytes(ballast))
            yield file.unlink
        else:
            full = cleaning.enter_context(ExitStack())
            full.enter_context(refusing(monkeypatch, "posix_fallocate", errno.ENOSPC, 12))
            yield full.close


def flush_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel offer no flushes of its own, as in many sandboxes and on other systems."""
    monkeypatch.setattr(KernelFlush, "open", lambda: None)
