"""Sends with the C++ client, in order, one at a time.

The only argument is JSON: {namesrv, group, accessKey, secretKey}, the last two optional. Every line on stdin is a
message: {topic, body, tags, keys, delayLevel, properties}, the last four optional, and {oneway: true},
{background: true} or {shardingKey: number} for another way of sending. A line with a list of messages is a batch. For
each line, one on stdout: {msgId, queueOffset}, which one-way messages lack, or {error}.
"""

from __future__ import annotations

import json
import queue
import sys
from typing import Any

from rocketmq.client import Message, Producer, SendResult


def message_of(line: dict[str, Any]) -> Message:
    message = Message(line["topic"])
    message.set_body(line["body"])
    if "tags" in line:
        message.set_tags(line["tags"])
    if "keys" in line:
        message.set_keys(line["keys"])
    if "delayLevel" in line:
        message.set_delay_time_level(line["delayLevel"])
    for name, value in line.get("properties", {}).items():
        message.set_property(name, value)
    return message


def answer_of(result: SendResult) -> dict[str, Any]:
    return {"msgId": result.msg_id, "queueOffset": result.offset}


def send(producer: Producer, line: Any) -> dict[str, Any]:
    if isinstance(line, list):
        return answer_of(producer.send_batch([message_of(each) for each in line]))
    message = message_of(line)
    if "oneway" in line:
        producer.send_oneway(message)
        return {}
    if "shardingKey" in line:
        return answer_of(producer.send_orderly(message, line["shardingKey"]))
    if "background" in line:
        done: queue.Queue[dict[str, Any]] = queue.Queue()
        producer.send_async(
            message, lambda result: done.put(answer_of(result)), lambda error: done.put({"error": str(error)})
        )
        return done.get()
    return answer_of(producer.send_sync(message))


def main(arguments: dict[str, str]) -> None:
    producer = Producer(arguments["group"])
    producer.set_namesrv_addr(arguments["namesrv"])
    if "accessKey" in arguments:
        producer.set_session_credentials(arguments["accessKey"], arguments["secretKey"], "")
    producer.start()
    for line in sys.stdin:
        try:
            answer = send(producer, json.loads(line))
        except Exception as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    producer.shutdown()


main(json.loads(sys.argv[1]))
