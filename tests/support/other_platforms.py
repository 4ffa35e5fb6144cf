"""Other platforms than Linux: processes whose modules lack the names that are missing there.

Call `become_macos` or `become_windows` before anything of Rucola is imported.
"""

from __future__ import annotations

import asyncio  # noqa: F401 - the standard library and other packages decide by the platform, too
import ctypes
import mmap
import multiprocessing  # noqa: F401
import os
import select
import signal
import socket
import subprocess  # noqa: F401
import sys
import sysconfig
from pathlib import Path
from typing import Any

import click
import click._compat
import click._termui_impl  # noqa: F401
import numpy as np  # noqa: F401
import rich.console  # noqa: F401

F_FULLFSYNC = 51
MS_SYNC = {"linux": 4, "darwin": 0x10}
RENAME_SWAP, AT_FDCWD = 2, -100
NO_PLACE_ON_MACOS: dict[Any, tuple[str, ...]] = {
    os: (
        *("fdatasync", "posix_fallocate", "posix_fadvise", "sendfile", "copy_file_range", "splice", "memfd_create"),
        *("eventfd", "pidfd_open", "sched_getaffinity", "preadv", "pwritev", "O_TMPFILE", "O_DIRECT", "O_PATH"),
        "RWF_NOWAIT",
    ),
    socket: ("TCP_INFO", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_QUICKACK", "TCP_CORK", "MSG_ZEROCOPY", "AF_NETLINK"),
    mmap: ("MADV_REMOVE", "MADV_POPULATE_WRITE", "MADV_HUGEPAGE", "MADV_DONTFORK", "MAP_POPULATE"),
    select: ("epoll",),
    signal: ("sigtimedwait", "SIGPWR", "SIGSTKFLT"),
}
NO_PLACE_ON_WINDOWS: dict[Any, tuple[str, ...]] = {
    os: (
        *(
            "fork",
            "forkpty",
            "register_at_fork",
            "pread",
            "pwrite",
            "statvfs",
            "getuid",
            "geteuid",
            "getpgid",
            "killpg",
        ),
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "SEEK_DATA", "SEEK_HOLE", "uname", "getloadavg"),
    ),
    socket: ("SO_REUSEPORT", "sethostname"),
    mmap: ("MADV_RANDOM", "MADV_NORMAL"),
    select: ("poll",),
    signal: ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGCHLD"),
}


def become_macos(syncs: Path) -> None:
    """Hide what macOS lacks, and offer what it has instead; each F_FULLFSYNC adds a byte to the file `syncs`."""
    import fcntl

    _hide(NO_PLACE_ON_MACOS)
    linux_fcntl, fsync = fcntl.fcntl, os.fsync

    def macos_fcntl(fd: Any, command: int, argument: Any = 0) -> Any:
        if command != F_FULLFSYNC:
            return linux_fcntl(fd, command, argument)
        fsync(fd)
        with syncs.open("ab") as file:
            file.write(b"s")
        return 0

    fcntl.fcntl = macos_fcntl
    fcntl.F_FULLFSYNC = F_FULLFSYNC  # type: ignore[attr-defined]
    ctypes.CDLL = _macos_library(ctypes.CDLL)  # type: ignore[misc, assignment]
    sys.platform = "darwin"


def become_windows() -> None:
    """Hide what Windows lacks."""
    _hide(NO_PLACE_ON_MACOS)
    _hide(NO_PLACE_ON_WINDOWS)
    for module in ("fcntl", "resource", "pwd", "grp", "termios", "syslog"):
        sys.modules[module] = None  # type: ignore[assignment]
    sys.platform = "win32"


def _hide(names: dict[Any, tuple[str, ...]]) -> None:
    sysconfig.get_config_vars()  # reads a file with the platform in its name, once
    for module, hidden in names.items():
        for name in hidden:
            if hasattr(module, name):
                delattr(module, name)


def _macos_library(linux_library: Any) -> Any:
    """The C library with the flags and functions of macOS, over those of Linux."""

    class Function:
        """A function of ctypes, to which one may assign `argtypes`."""

        def __init__(self, call: Any) -> None:
            self._call = call

        def __call__(self, *arguments: Any) -> Any:
            return self._call(*arguments)

    class Library:
        def __init__(self, name: str | None, use_errno: bool = False) -> None:
            library = linux_library(name, use_errno=use_errno)
            library.msync.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

            def msync(address: int, size: int, flag: int) -> Any:
                assert flag == MS_SYNC["darwin"], "on macOS, any other flag discards pages, or does not wait"
                return library.msync(address, size, MS_SYNC["linux"])

            def madvise(*_: Any) -> Any:
                raise AssertionError("no advice of Linux means the same on macOS")

            def renamex_np(one: bytes, other: bytes, flags: int) -> Any:
                assert flags == RENAME_SWAP
                return library.renameat2(AT_FDCWD, one, AT_FDCWD, other, flags)

            self.msync, self.madvise, self.renamex_np = Function(msync), Function(madvise), Function(renamex_np)

    return Library
