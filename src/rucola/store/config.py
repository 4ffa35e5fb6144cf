"""The configuration of a store, and the results of its operations."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from msgspec import Struct

from rucola import settings
from rucola.errors import ConfigError
from rucola.files import local_path
from rucola.message.delay import DEFAULT_DELAY_LEVELS
from rucola.settings import Bytes, Count, Hours, Interval, Milliseconds, Percent, Range
from rucola.store.consume_queue import UNIT_SIZE
from rucola.store.held_bytes import HeldBytes
from rucola.store.multi_dispatch import MultiDispatch

DERIVED_DIRECTORIES: Final = ("consumequeue", "index")
"""The parts of a store directory that are rebuilt from its log."""


class FlushDiskType(Enum):
    """Whether a producer's put is acknowledged at once, or after its bytes are on disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(Enum):
    """A broker's role: slave, or master whose acknowledgement waits for a slave (SYNC_MASTER) or not."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(slots=True)
class StoreConfig:
    """The settings of a store; Apache's names and defaults. The docstring of a field is its entry in the reference.

    `store_host` is the broker's encoded address (`message.host.encode_host`), set before the store is opened. A `~` at
    the start of a path is the home directory.
    """

    # Directories and files

    store_path_root_dir: Path = Path("~/store")
    """Directory of the store. Give it a separate disk."""
    store_host: bytes = b""
    store_path_commit_log: Path | None = None
    """Directory of the CommitLog; by default `commitlog` in the store. Set it to give the log the faster disk."""
    mapped_file_size_commit_log: Bytes = field(
        default=1024 * 1024 * 1024, metadata={"former": ("mapedFileSizeCommitLog",)}
    )
    """Size of a CommitLog file, the unit of retention. Lower it for small disks; it cannot change later."""
    mapped_file_size_consume_queue: Bytes = field(
        default=300_000 * UNIT_SIZE, metadata={"former": ("mapedFileSizeConsumeQueue",)}
    )
    """Size of a ConsumeQueue file: 20 bytes per message. Lower it for very many queues; it cannot change later."""
    max_hash_slot_num: Annotated[Count, Range(1, 100_000_000)] = 5_000_000
    """Number of hash slots of an IndexFile, 4 bytes each."""
    max_index_num: Annotated[Count, Range(1, 100_000_000)] = 20_000_000
    """Number of entries of an IndexFile, 20 bytes each."""
    message_index_enable: bool = True
    """Whether messages are indexed by their keys. Without it queries by key and unique key find nothing."""

    # Light message queues

    enable_multi_dispatch: bool = False
    """Whether a message is also dispatched to the queues that its property INNER_MULTI_DISPATCH names.

    Set it for a store that has such queues, and the same on a master and its slaves; see docs/store.md.
    """
    enable_lmq: bool = False
    """Whether topics and groups named %LMQ%... exist by themselves; their offsets are in lmqConsumerOffset.json."""
    max_lmq_consume_queue_num: Annotated[Count, Range(1, 10_000_000)] = 20_000
    """Number of queues %LMQ%... from which on messages that name a new one are refused. Each has a separate file."""

    # Limits

    max_msgs_num_batch: Annotated[Count, Range(1, 10_000)] = 64
    """Maximum number of messages in the response to a query by key."""
    max_message_size: Annotated[Bytes, Range(1, 16 * 1024 * 1024)] = 4 * 1024 * 1024
    """Maximum size of a message's body. The client's limit must be raised with it."""
    max_transfer_bytes_on_message_in_memory: Annotated[Bytes, Range(1, 8 * 1024 * 1024)] = 256 * 1024
    """Maximum size of the response to a pull of messages in memory. At least one message is returned."""
    max_transfer_count_on_message_in_memory: Annotated[Count, Range(1, 10_000)] = 32
    """Maximum number of messages in the response to a pull of messages in memory. Raise it for many small messages."""
    max_transfer_bytes_on_message_in_disk: Annotated[Bytes, Range(1, 8 * 1024 * 1024)] = 64 * 1024
    """Maximum size of the response to a pull of messages on disk."""
    max_transfer_count_on_message_in_disk: Annotated[Count, Range(1, 10_000)] = 8
    """Maximum number of messages in the response to a pull of messages on disk."""
    access_message_in_memory_max_ratio: Percent = 40
    """Part of the machine's memory that the newest messages are expected to stay in; older ones count as on disk."""

    # Durability

    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    """SYNC_MASTER acknowledges when a slave has the message, ASYNC_MASTER at once; SLAVE follows a master."""
    offset_check_in_slave: bool = False
    """Whether a slave answers pulls outside its queues with a corrected offset, as a master does."""
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    """SYNC_FLUSH acknowledges when the message is on disk, ASYNC_FLUSH at once.

    With ASYNC_FLUSH a crash of the process loses nothing; a power failure loses the last half second.
    """
    flush_interval_commit_log: Interval = 500
    """Time between two flushes of the log with ASYNC_FLUSH."""
    sync_flush_timeout: Milliseconds = 5000
    """Time for which SYNC_FLUSH waits for the disk before it answers FLUSH_DISK_TIMEOUT."""

    # Delayed messages

    message_delay_level: str = DEFAULT_DELAY_LEVELS
    """Delays of the levels 1, 2, …, with the units s, m, h and d. Retries use levels from 3 on."""

    # Retention

    file_reserved_time: Hours = 72
    """Time for which messages are kept. A CommitLog file is deleted if its last message is older."""
    delete_when: str = "04"
    """Hours of the day, 00 to 23, at which old files are deleted, joined by `;`; 99 for none.

    They are also deleted if the disk is full.
    """
    clean_resource_interval: Interval = 10_000
    """Time between two checks of retention and disk space."""
    delete_commit_log_files_interval: Milliseconds = 100
    """Pause between two deletions of files, so that the disk is not busy with them alone."""
    destroy_maped_file_interval_forcibly: Milliseconds = 120_000
    """Time after which a deleted file that is still read is closed."""
    disk_max_used_space_ratio: Percent = 75
    """Used disk space above which old files are deleted at any hour."""
    clean_file_forcibly_enable: bool = True
    """Whether the oldest files are deleted although they are not old enough, if the disk is nearly full."""
    disk_space_clean_forcibly_ratio: Percent = 85
    """Used disk space above which cleanFileForciblyEnable takes effect."""
    disk_space_warning_level_ratio: Percent = 90
    """Used disk space above which messages are refused."""
    delete_only_archived: bool = False
    """Whether files are kept until the archive has them. Needs archiveProgressPath; see docs/pipeline-archive.md."""
    archive_progress_path: Path | None = None
    """File in which `rucola pipeline archive` records its progress in the lake."""
    archive_name: str = ""
    """Name of this store in the lake; by default its path."""

    def __post_init__(self) -> None:
        settings.check(self)
        deletion_hours(self.delete_when)
        self.store_path_root_dir = local_path(self.store_path_root_dir).expanduser()
        if self.store_path_commit_log is not None:
            self.store_path_commit_log = local_path(self.store_path_commit_log).expanduser()
        if self.archive_progress_path is not None:
            self.archive_progress_path = local_path(self.archive_progress_path).expanduser()

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def multi_dispatch(self) -> MultiDispatch:
        """Whether and how records have units in further queues."""
        return MultiDispatch.of(enable_multi_dispatch=self.enable_multi_dispatch, enable_lmq=self.enable_lmq)

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    @property
    def commit_log_directory(self) -> Path:
        """storePathCommitLog, or `commitlog` under the root."""
        return Path(self.store_path_commit_log or Path(self.store_path_root_dir) / "commitlog")

    def transfer_limits(self, distance: int) -> tuple[int, int, bool]:
        """Return the fetch limits (messages, bytes, whether on disk) at a distance in bytes from the end of the log."""
        if distance > _memory_size() * self.access_message_in_memory_max_ratio // 100:  # `is_on_disk`
            return self.max_transfer_count_on_message_in_disk, self.max_transfer_bytes_on_message_in_disk, True
        return self.max_transfer_count_on_message_in_memory, self.max_transfer_bytes_on_message_in_memory, False

    def is_on_disk(self, distance: int) -> bool:
        """Return whether a record so far from the end of the log, in bytes, counts as not in the page cache."""
        return distance > _memory_size() * self.access_message_in_memory_max_ratio // 100


def deletion_hours(delete_when: str) -> frozenset[int]:
    """Return the hours of deleteWhen, such as "04" or "04;16". ConfigError for any other text."""
    hours = frozenset(hour.strip() for hour in delete_when.split(";") if hour.strip())
    if not hours or not all(re.fullmatch("[01]?[0-9]|2[0-3]|99", hour, re.ASCII) for hour in hours):
        raise ConfigError(
            f'deleteWhen={delete_when}: expected hours from 00 to 23, such as "04" or "04;16", or 99 for none',
            subject="deleteWhen",
        )
    return frozenset(map(int, hours))


@cache
def _memory_size() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class PutMessageStatus(Enum):
    """The outcome of a put. The names are Apache's."""

    PUT_OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3
    SERVICE_NOT_AVAILABLE = 4
    """The store refuses puts; `MessageStore.write_state.reason` has the reason."""
    CREATE_MAPEDFILE_FAILED = 5
    """The disk has no space for the record."""
    MESSAGE_ILLEGAL = 6
    PROPERTIES_SIZE_EXCEEDED = 7
    OS_PAGECACHE_BUSY = 8
    UNKNOWN_ERROR = 9
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = 10


PUT_OK = PutMessageStatus.PUT_OK
"""PutMessageStatus.PUT_OK as a global, for the hot path: it saves a lookup in the enum class per message."""


class PutBatchResult(Struct, frozen=True):
    """The outcome of a batch put, all or none; `size` is the sum of all records."""

    status: PutMessageStatus
    physical_offsets: list[int] = []
    queue_offsets: list[int] = []
    size: int = 0


class GetMessageStatus(Enum):
    """The outcome of a get. The names are Apache's."""

    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8


class PutResult(Struct, frozen=True, gc=False):
    """The outcome of one put. The other fields are set with PUT_OK only."""

    status: PutMessageStatus
    physical_offset: int = -1
    queue_offset: int = -1
    size: int = 0


class GetResult(Struct, frozen=True, gc=False):
    """The records that a get found, in queue order, and the queue offset to continue from.

    `suggests_slave` asks the consumer to pull from a slave, since its messages come from disk (`is_on_disk`).
    """

    status: GetMessageStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    joined: bytes | HeldBytes
    count: int
    suggests_slave: bool = False

    @property
    def records(self) -> list[bytes]:
        records: list[bytes] = []
        position = 0
        assert isinstance(self.joined, bytes)
        while position < len(self.joined):
            size = int.from_bytes(self.joined[position : position + 4], "big")
            records.append(self.joined[position : position + size])
            position += size
        return records


class QueryResult(NamedTuple):
    """The outcome of a query by key: records with that key's hash, oldest first.

    The index fields are the last indexed message's, 0 if nothing was found. `index_range` has the store times of the
    first and last message in the index, 0 if empty, or None without an index.
    """

    records: list[bytes]
    physical_offsets: list[int]
    index_last_update_timestamp: int
    index_last_update_physical_offset: int
    index_range: tuple[int, int] | None
