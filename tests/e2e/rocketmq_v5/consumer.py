"""Consumes with the client of RocketMQ 5 for Python until stdin ends.

The only argument is JSON: {endpoint, group, topic, kind, tag, failing}, the last two optional. `kind` is "simple",
which receives and acknowledges, or "push", whose listener fails once for each body in `failing`. Each message is a line
on stdout: {message: {body, messageId, attempt, tag, group}}.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import PushConsumer, SimpleConsumer
from rocketmq.v5.consumer.push import ConsumeResult, MessageListener
from rocketmq.v5.model import FilterExpression, Message


def say(message: Message) -> None:
    line = {
        "body": message.body.decode(),
        "messageId": message.message_id,
        "attempt": message.delivery_attempt,
        "tag": message.tag,
        "group": message.message_group,
    }
    sys.stdout.write(json.dumps({"message": line}) + "\n")  # at once: listeners run in threads
    sys.stdout.flush()


class Listener(MessageListener):
    def __init__(self, failing: list[str]) -> None:
        self._failing = failing

    def consume(self, message: Message) -> ConsumeResult:
        say(message)
        body = message.body.decode()
        if body in self._failing:
            self._failing.remove(body)
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


def receive(consumer: SimpleConsumer, ended: threading.Event) -> None:
    while not ended.is_set():
        for message in consumer.receive(16, 15) or ():
            say(message)
            consumer.ack(message)


def main() -> None:
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    configuration = ClientConfiguration(arguments["endpoint"], Credentials())
    subscriptions = {arguments["topic"]: FilterExpression(arguments.get("tag", "*"))}
    ended = threading.Event()
    if arguments["kind"] == "push":
        listener = Listener(arguments.get("failing", []))
        consumer = PushConsumer(configuration, arguments["group"], listener, subscriptions)
        consumer.startup()
    else:
        consumer = SimpleConsumer(configuration, arguments["group"], subscriptions, await_duration=2)
        consumer.startup()
        threading.Thread(target=receive, args=(consumer, ended)).start()
    sys.stdin.read()
    ended.set()
    consumer.shutdown()


if __name__ == "__main__":
    main()
