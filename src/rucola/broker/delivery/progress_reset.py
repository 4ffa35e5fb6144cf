"""Progress reset: a broker resets its delivery progress when its log is cut off.

A master that returns as slave may have delivered messages by records that no other broker has. After these are cut off
(`rucola.store.diverged_tail`), the offsets of delayed delivery, timer messages and half messages still count them.
Messages would be lost if it became master again, so all progress starts at 0. Such a master looks up in the index what
was due before the end of its log, and delivers what is missing. Half messages put back by a check are checked again.
"""

from __future__ import annotations

from pathlib import Path

from rucola import slices
from rucola.broker.delivery.delay import DELAY_OFFSET_FILE, write_delay_offsets
from rucola.broker.delivery.timer import TIMER_FILE, TimerCheckpoint, write_checkpoint
from rucola.broker.tables.offsets import CONSUMER_OFFSET_FILE, ConsumerOffsetTable
from rucola.store.config_files import read_config
from rucola.store.features import LMQ_OFFSET_FILE


def reset_progress(config_directory: Path) -> None:
    """Reset the progress in existing files of a stopped broker; durable on return. Raises OSError and StoreCorrupt."""
    delayed, timers = config_directory / DELAY_OFFSET_FILE, config_directory / TIMER_FILE
    # An empty table, and no deletion: a missing file is read from its .bak.
    if read_config(delayed) is not None:
        write_delay_offsets(delayed, {}, 0)
    if read_config(timers) is not None:
        write_checkpoint(timers, TimerCheckpoint(0, 0, 0), 0)
    for name in (CONSUMER_OFFSET_FILE, LMQ_OFFSET_FILE):
        offsets = ConsumerOffsetTable(config_directory / name)
        offsets.load(None)
        offsets.reset_transactions()
        slices.run(offsets.snapshot_steps())()
