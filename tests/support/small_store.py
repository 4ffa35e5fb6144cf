"""A store directory written file by file, so that a test decides about every byte in it."""

from __future__ import annotations

from pathlib import Path

from rucola.message import MessageInner, properties, record
from rucola.message.hashing import string_hash
from rucola.message.host import encode_host

FILE_SIZE = 4096
UNITS_PER_FILE = 500
HOST = encode_host("127.0.0.1:10911")


class SmallStore:
    """CommitLog files of 4 KiB and ConsumeQueues; everything that is put is there at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.end = 0
        self.next_offsets: dict[tuple[str, int], int] = {}
        (path / "commitlog").mkdir(parents=True)

    def put(
        self,
        topic: str = "T",
        queue_id: int = 0,
        body: bytes = b"body",
        *,
        at_ms: int = 1_700_000_000_000,
        born_ms: int | None = None,
        sys_flag: int = 0,
        dispatch: bool = True,
        **pairs: str,
    ) -> int:
        """Append a message and return its physical offset; keyword arguments are its properties."""
        born_ms = at_ms if born_ms is None else born_ms
        inner = MessageInner(topic, queue_id, body, properties.join(pairs), 0, sys_flag, born_ms, HOST)
        queue_offset = self.next_offsets.get((topic, queue_id), 0)
        size = len(record.encode(inner, queue_offset, self.end, at_ms, HOST))
        left = FILE_SIZE - self.end % FILE_SIZE
        if size + 8 > left:
            self._write(self.end, record.FRAME.pack(left, record.BLANK_MAGIC))
            self.end += left
        physical_offset = self.end
        self._write(physical_offset, record.encode(inner, queue_offset, physical_offset, at_ms, HOST))
        self.end += size
        if dispatch:
            tags_code = string_hash(pairs.get(properties.TAGS, ""))
            self.put_unit(topic, queue_id, queue_offset, physical_offset, size, tags_code)
            self.next_offsets[topic, queue_id] = queue_offset + 1
        return physical_offset

    def put_unit(
        self, topic: str, queue_id: int, queue_offset: int, physical_offset: int, size: int, tags_code: int = 0
    ) -> None:
        """Write one unit of a ConsumeQueue, right or wrong."""
        path = self.path / "consumequeue" / topic / str(queue_id) / f"{0:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(bytes(UNITS_PER_FILE * 20))
        unit = physical_offset.to_bytes(8, "big") + size.to_bytes(4, "big") + tags_code.to_bytes(8, "big", signed=True)
        _overwrite(path, queue_offset * 20, unit)

    def overwrite(self, physical_offset: int, data: bytes) -> None:
        """Write over bytes of the log."""
        self._write(physical_offset, data)

    def _write(self, physical_offset: int, data: bytes) -> None:
        begin = physical_offset // FILE_SIZE * FILE_SIZE
        path = self.path / "commitlog" / f"{begin:020d}"
        if not path.exists():
            path.write_bytes(bytes(FILE_SIZE))
        _overwrite(path, physical_offset - begin, data)


def _overwrite(path: Path, position: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(data)
