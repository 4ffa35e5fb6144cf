"""Consumes with the client of RocketMQ 5 for Python until stdin ends.

The only argument is JSON: {endpoint, group, topic, kind, tag, sql, failing, held, changed}, the last five optional.
`kind` is "simple", which receives and acknowledges, or "push", whose listener fails once for each body in `failing`. A
simple consumer keeps the bodies in `held`, and makes those in `changed` visible again at once when they come first;
{acknowledge: body} on stdin acknowledges what it has kept. Lines on stdout: {message: {body, messageId, attempt, tag,
keys, group, properties}} for each message, {acknowledged: body} for what it has kept, and {error}.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from rocketmq.grpc_protocol import FilterType
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import PushConsumer, SimpleConsumer
from rocketmq.v5.consumer.push import ConsumeResult, MessageListener
from rocketmq.v5.model import FilterExpression, Message

INVISIBLE_S = 15


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")  # at once: listeners run in threads
    sys.stdout.flush()


def say_message(message: Message) -> str:
    body: str = message.body.decode()
    say(
        message={
            "body": body,
            "messageId": message.message_id,
            "attempt": message.delivery_attempt,
            "tag": message.tag,
            "keys": sorted(message.keys),
            "group": message.message_group,
            "properties": dict(message.properties),
        }
    )
    return body


class Listener(MessageListener):
    def __init__(self, failing: list[str]) -> None:
        self._failing = failing

    def consume(self, message: Message) -> ConsumeResult:
        body = say_message(message)
        if body in self._failing:
            self._failing.remove(body)
            return ConsumeResult.FAILURE
        return ConsumeResult.SUCCESS


class Receiver:
    """Receives in a thread of its own."""

    def __init__(self, consumer: SimpleConsumer, held: list[str], changed: list[str]) -> None:
        self._consumer = consumer
        self._held = held
        self._changed = changed
        self._kept: dict[str, Message] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._run).start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                for message in self._consumer.receive(16, INVISIBLE_S) or ():
                    self._take(message)
            except Exception as error:  # whatever it raises, as while the server is away
                say(error=repr(error))
                self._ended.wait(0.2)

    def _take(self, message: Message) -> None:
        body = say_message(message)
        if body in self._held:
            self._kept[body] = message
        elif body in self._changed and message.delivery_attempt == 1:
            self._consumer.change_invisible_duration(message, 0)
        else:
            self._consumer.ack(message)

    def acknowledge(self, body: str) -> None:
        while True:
            try:
                self._consumer.ack(self._kept[body])
            except Exception as error:
                say(error=repr(error))
                self._ended.wait(0.2)
            else:
                say(acknowledged=body)
                return

    def end(self) -> None:
        self._ended.set()


def main() -> None:
    arguments: dict[str, Any] = json.loads(sys.argv[1])
    configuration = ClientConfiguration(arguments["endpoint"], Credentials())
    expression = FilterExpression(arguments.get("tag", "*"))
    if "sql" in arguments:
        expression = FilterExpression(arguments["sql"], FilterType.SQL)
    subscriptions = {arguments["topic"]: expression}
    receiver = None
    if arguments["kind"] == "push":
        listener = Listener(arguments.get("failing", []))
        consumer = PushConsumer(configuration, arguments["group"], listener, subscriptions)
        consumer.startup()
    else:
        consumer = SimpleConsumer(configuration, arguments["group"], subscriptions, await_duration=2)
        consumer.startup()
        receiver = Receiver(consumer, arguments.get("held", []), arguments.get("changed", []))
    for line in sys.stdin:
        assert receiver is not None
        receiver.acknowledge(json.loads(line)["acknowledge"])
    if receiver is not None:
        receiver.end()
    consumer.shutdown()


if __name__ == "__main__":
    main()
