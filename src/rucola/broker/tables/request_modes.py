"""Request modes: whether a group receives a topic's messages by PULL or by POP; `config/messageRequestMode.json`.

A group has the mode PULL for a topic until an operator changes it (`rucola admin setConsumeMode`). Clients that
let the broker assign their queues ask for it (`clientRebalance=false` of Apache's client of RocketMQ 5).

Corresponds to `MessageRequestModeManager` of Apache RocketMQ 5, with its file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from rucola import fastjson
from rucola.domain.group import MessageRequestMode, MessageRequestModes
from rucola.store.config_files import ConfigFile


class RequestModeTable:
    def __init__(self, path: Path, on_change: Callable[[], None]) -> None:
        self._file = ConfigFile(path)
        self._on_change = on_change
        self._modes: dict[str, dict[str, MessageRequestMode]] = {}
        """By topic, then by group."""

    def __len__(self) -> int:
        return sum(map(len, self._modes.values()))

    def load(self) -> None:
        """Load the file. Raises StoreCorrupt if it cannot be parsed."""
        if value := self._file.read():
            self._modes = fastjson.to_struct(MessageRequestModes, value).message_request_mode_map

    def get(self, topic: str, group: str) -> MessageRequestMode:
        found = self._modes.get(topic, {}).get(group)
        return MessageRequestMode(topic=topic, consumer_group=group) if found is None else found

    def set(self, mode: MessageRequestMode) -> None:
        if self.get(mode.topic, mode.consumer_group) != mode:
            self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
            self._on_change()

    def remove(self, *, topic: str | None = None, group: str | None = None) -> None:
        """Remove what was set for a topic, or for a group."""
        modes = {
            name: kept
            for name, groups in self._modes.items()
            if name != topic and (kept := {key: mode for key, mode in groups.items() if key != group})
        }
        if modes != self._modes:
            self._modes = modes
            self._on_change()

    def all(self) -> MessageRequestModes:
        """Return all modes, as in GET_ALL_MESSAGE_REQUEST_MODE and in the file."""
        return MessageRequestModes(message_request_mode_map=self._modes)

    def replace(self, modes: MessageRequestModes) -> None:
        """Take the modes of a master."""
        if modes.message_request_mode_map != self._modes:
            self._modes = modes.message_request_mode_map
            self._on_change()

    def snapshot_writer(self) -> Callable[[], None]:
        document = msgspec.to_builtins(self.all())
        return self._file.prepare_write(lambda: document)
