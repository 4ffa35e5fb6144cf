"""Consumes a topic with the C++ client and tells on stdout, a JSON object a line, what happens to it.

The only argument is JSON: {namesrv, group, topic}, and where wanted

    expression   what to subscribe to, "TagA || TagB"
    broadcast    every consumer gets every message
    orderly      one message of a queue at a time
    pull         ask for what is there, queue by queue, instead of being called
    failures     how often a message is failed before it is taken
    accessKey    with secretKey: the credentials

Lines are {message: {...}} for every call of its listener. It leaves its group and ends when stdin does.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from rocketmq.client import MessageModel, PullConsumer, PushConsumer, RecvMessage

_one_at_a_time = threading.Lock()


class FailedOnPurposeError(Exception):
    """The client turns any exception into "later"."""


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def tell(message: RecvMessage) -> None:
    said = {
        "topic": message.topic,
        "body": text(message.body),
        "tags": text(message.tags),
        "keys": text(message.keys),
        "msgId": message.id,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "colour": text(message.get_property("colour")),
    }
    with _one_at_a_time:  # the client calls from threads of its own
        print(json.dumps({"message": said}), flush=True)


def main(arguments: dict[str, Any]) -> None:
    expression = arguments.get("expression", "*")
    if arguments.get("pull"):
        puller = PullConsumer(arguments["group"])
        puller.set_namesrv_addr(arguments["namesrv"])
        if "accessKey" in arguments:
            puller.set_session_credentials(arguments["accessKey"], arguments["secretKey"], "")
        puller.start()
        for message in puller.pull(arguments["topic"], expression):
            tell(message)
        sys.stdin.read()
        puller.shutdown()
        return
    model = MessageModel.BROADCASTING if arguments.get("broadcast") else MessageModel.CLUSTERING
    consumer = PushConsumer(arguments["group"], orderly=arguments.get("orderly", False), message_model=model)
    consumer.set_namesrv_addr(arguments["namesrv"])
    if "accessKey" in arguments:
        consumer.set_session_credentials(arguments["accessKey"], arguments["secretKey"], "")
    consumer.set_thread_count(1)  # so that what it tells of a queue is in order

    def listen(message: RecvMessage) -> None:
        tell(message)
        if message.reconsume_times < arguments.get("failures", 0):
            raise FailedOnPurposeError

    consumer.subscribe(arguments["topic"], listen, expression)
    consumer.start()
    sys.stdin.read()
    consumer.shutdown()


main(json.loads(sys.argv[1]))
