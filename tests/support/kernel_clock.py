"""The wall clock of a running process that does not ask libc for it, as programs in Go do not.

Such a program calls the function `clock_gettime` of the vDSO, a small library that the kernel maps into each process.
This module overwrites it there, in the process's own copy of the page, by the system call and an addition to
CLOCK_REALTIME:

    mov eax, 228; syscall            clock_gettime(edi, rsi)
    test edi, edi; jne end           another clock than CLOCK_REALTIME
    mov rcx, [rip + 6]; add [rsi], rcx
    end: ret
    seconds: dq 0
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import signal
import struct
from pathlib import Path
from subprocess import Popen

from support.processes import wait_until

FUNCTION = "__vdso_clock_gettime"
CODE = bytes.fromhex("b8e4000000 0f05 85ff 750a 488b0d06000000 48010e c3 9090")
IS_SUPPORTED = platform.system() == "Linux" and platform.machine() == "x86_64"


class KernelClock:
    """The wall clock of one process of this user, which jumps while it runs; its other clocks are the system's."""

    def __init__(self, process: Popen[bytes]) -> None:
        self._process = process
        begin, self._end = _vdso(process.pid)
        self._function = begin + _offset_of_function()
        process.send_signal(signal.SIGSTOP)
        try:
            wait_until(self._is_stopped_elsewhere)
            self._write(self._function, CODE + bytes(8))
        finally:
            process.send_signal(signal.SIGCONT)

    def jump(self, seconds: int) -> None:
        """Set the clock to so many seconds after the system's, or before it."""
        self._write(self._function + len(CODE), struct.pack("<q", seconds))

    def _is_stopped_elsewhere(self) -> bool:
        """Whether all threads stand still, and none inside of the vDSO; else let them go on a little."""
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "Tt":
                return False
            counter = (task / "syscall").read_text().split()[-1]  # the instruction to be executed next
            if self._function <= int(counter, 16) < self._end:
                self._process.send_signal(signal.SIGCONT)
                self._process.send_signal(signal.SIGSTOP)
                return False
        return True

    def _write(self, address: int, data: bytes) -> None:
        memory = os.open(f"/proc/{self._process.pid}/mem", os.O_RDWR)
        try:
            assert os.pwrite(memory, data, address) == len(data)
        finally:
            os.close(memory)


def _vdso(pid: int) -> tuple[int, int]:
    """The addresses of the vDSO in a process."""
    found = re.search(r"^(\w+)-(\w+) .*\[vdso\]$", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1], 16), int(found[2], 16)


def _offset_of_function() -> int:
    """Where the function is in the vDSO: in every process the same."""
    function = getattr(ctypes.CDLL("linux-vdso.so.1"), FUNCTION)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address - _vdso(os.getpid())[0]
