"""What the process of a broker does now: the stacks of its threads and tasks, for people who search a fault."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
import traceback
from collections.abc import Generator

MAX_SIZE = 256 * 1024
MAX_TASKS = 500
MAX_FRAMES = 12


def report_steps() -> Generator[None, None, str]:
    """Return the stacks in small steps, without values of variables; at most MAX_SIZE characters."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # noqa: SLF001 - the only way to them
        text.write(f"thread {names.get(ident, ident)}\n")
        text.writelines(traceback.format_stack(frame, MAX_FRAMES))
        yield
    tasks = sorted(asyncio.all_tasks(), key=lambda task: task.get_name())
    text.write(f"{len(tasks)} tasks\n")
    for task in tasks[:MAX_TASKS]:
        # The representation of a task, which `print_stack` writes, has arguments of its callbacks.
        text.write(f"task {task.get_name()} {getattr(task.get_coro(), '__qualname__', '')}\n")
        for frame in task.get_stack(limit=MAX_FRAMES):
            text.writelines(traceback.format_list(traceback.extract_stack(frame, 1)))
        yield
    return text.getvalue()[:MAX_SIZE]
