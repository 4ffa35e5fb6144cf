"""Held bytes: a range of the log that is read in place, without a copy."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rucola.store.mapped_file import MappedFile


class HeldBytes:
    """Bytes of one file, which stays open, even if deleted, until `release` or the end of a `with` block."""

    __slots__ = ("_file", "view")

    def __init__(self, file: MappedFile, view: memoryview) -> None:
        self._file = file
        self.view = view

    def __len__(self) -> int:
        return len(self.view)

    def release(self) -> None:
        self.view.release()
        self._file.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()
