"""Who of a group consumes which queue: pure functions from members and queues to one member's share.

Every member computes its own share from the same two lists, both sorted, so that the shares fit together without
anybody being asked: each queue belongs to exactly one member. While members see different lists, for a moment,
a queue may have two owners or none.

Answers to the package `org.apache.rocketmq.client.consumer.rebalance` of Apache RocketMQ 4.9.8, whose results these
functions give, so that members of both kinds can share a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rucola.protocol.queue import MessageQueue

Strategy: TypeAlias = Callable[[str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]
"""(own client id, all queues sorted, all client ids sorted) -> own queues."""


def average(client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
    """AVG: neighbouring queues, as even as can be; the first members take one more where it does not come out even.

    A member that is not among `client_ids`, or beyond the number of queues, gets none.
    """
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    begin = index * share + min(index, rest)
    return list(queues[begin : begin + share + (index < rest)])
