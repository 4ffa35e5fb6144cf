"""Inspect the dead letter queue, to which messages move that fail too often.

It prints:

    tried 3 times
    dead: a pizza with pineapple
"""

import queue

from rucola.client import MessageExt
from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    producer.send(Message("Orders", b"a pizza with pineapple"))

tries: "queue.Queue[int]" = queue.Queue()


def cook(message: MessageExt) -> None:
    tries.put(message.reconsume_times)
    raise ValueError("never")


kitchen = PushConsumer("kitchen", max_reconsume_times=2)  # 16 by default
kitchen.subscribe("Orders")
kitchen.listen(cook)
with kitchen:
    print(f"tried {len([tries.get(timeout=60) for _ in range(3)])} times")

# `rucola admin printDlq` shows them as well, and `rucola admin redriveDlq` sends them to their topic again.
chef = PushConsumer("chef")
chef.subscribe("%DLQ%kitchen")
with chef:
    print("dead:", next(chef.messages()).body.decode())
