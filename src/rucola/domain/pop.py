"""POP of a group: who holds which message until when."""

from __future__ import annotations

import msgspec


class PopMessage(msgspec.Struct, rename="camel", kw_only=True):
    """An outstanding message. `visible_ms` is when somebody else may receive it, 0 if it was never delivered."""

    queue_offset: int
    client: str = ""
    attempt: int = 0
    pop_time_ms: int = 0
    visible_ms: int = 0
    message_group: str | None = None


class PopQueueStatus(msgspec.Struct, rename="camel", kw_only=True):
    """One queue. `ready` messages are not read yet, `in_flight` ones are held, `waiting` ones are behind them."""

    topic: str
    queue_id: int
    committed_offset: int
    ready: int
    in_flight: int
    waiting: int
    # When the oldest one in flight was received first or again; 0 without any.
    oldest_ms: int = 0
    # Why nobody receives the next messages, in words; empty if somebody can.
    blocked: str = ""
    # The first ones in flight, or the one that was asked for, if it is in flight or waiting.
    messages: list[PopMessage] = []


class PopStatus(msgspec.Struct, rename="camel", kw_only=True):
    broker_name: str = ""
    # Receives that wait for messages.
    receives: int = 0
    queues: list[PopQueueStatus] = []
