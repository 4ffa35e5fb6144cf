"""QUERY_ASSIGNMENT (400): the queues that a broker assigns to a client, and whether it pulls or pops them.

The body of SET_MESSAGE_REQUEST_MODE (401) is a `MessageRequestMode`, the body of the response to
GET_ALL_MESSAGE_REQUEST_MODE (402) `MessageRequestModes`. Corresponds to classes of Apache RocketMQ 5.
"""

from __future__ import annotations

from rucola.domain.group import PULL
from rucola.domain.queue import MessageQueue
from rucola.protocol.body import Body


class QueryAssignmentRequestBody(Body, kw_only=True):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = "AVG"
    message_model: str = "CLUSTERING"


class MessageQueueAssignment(Body, kw_only=True):
    # Queue id -1, by POP: all queues of the broker.
    message_queue: MessageQueue
    mode: str = PULL


class QueryAssignmentResponseBody(Body, kw_only=True):
    """None if the broker does not know; the client then keeps what it has."""

    message_queue_assignments: list[MessageQueueAssignment] | None = None
