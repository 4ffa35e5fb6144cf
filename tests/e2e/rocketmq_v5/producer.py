"""Sends with the client of RocketMQ 5 for Python, in order, one at a time.

The only argument is JSON: {endpoint, topics, accessKey, secretKey}, the last two optional. Every line on stdin is a
message: {topic, body, tag, keys, group, due, properties}, the last five optional; `due` is in seconds since 1970. With
{transaction: "commit", "rollback" or "none"} it is sent in a transaction that ends so, or is left to the check, which
commits the body "none" alone. {topic, recall: handle} recalls a message. For each line, one on stdout: {sent:
{messageId, offset, recallHandle}}, {recalled: messageId} or {error}; and {checked: body} for each check.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from rocketmq.grpc_protocol import TransactionResolution
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.model import Message
from rocketmq.v5.producer import Producer, TransactionChecker


class Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        say(checked=message.body.decode())
        if message.body == b"none":
            return TransactionResolution.COMMIT
        return TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def message_of(line: dict[str, Any]) -> Message:
    message = Message()
    message.topic, message.body = line["topic"], line["body"].encode()
    if "tag" in line:
        message.tag = line["tag"]
    for key in line.get("keys", ()):
        message.keys = key
    if "group" in line:
        message.message_group = line["group"]
    if "due" in line:
        message.delivery_timestamp = line["due"]
    for name, value in line.get("properties", {}).items():
        message.add_property(name, value)
    return message


def send(producer: Producer, line: dict[str, Any]) -> None:
    how = line.get("transaction")
    transaction = producer.begin_transaction() if how else None
    try:
        if "recall" in line:
            say(recalled=producer.recall_message(line["topic"], line["recall"]))
            return
        receipt = producer.send(message_of(line), transaction)
        if transaction is not None and how != "none":
            transaction.commit() if how == "commit" else transaction.rollback()
    except Exception as error:  # whatever it raises
        say(error=repr(error))
    else:
        handle = receipt.recall_handle
        say(sent={"messageId": receipt.message_id, "offset": receipt.offset, "recallHandle": handle})


def main() -> None:
    arguments = json.loads(sys.argv[1])
    keys = [arguments[name] for name in ("accessKey", "secretKey") if name in arguments]
    configuration = ClientConfiguration(arguments["endpoint"], Credentials(*keys))
    producer = Producer(configuration, arguments["topics"], Checker())
    producer.startup()
    for line in sys.stdin:
        send(producer, json.loads(line))
    producer.shutdown()


if __name__ == "__main__":
    main()
