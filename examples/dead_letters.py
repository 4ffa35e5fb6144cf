"""Inspect the dead letter queue, to which messages move that fail too often.

It prints:

    tried 3 times
    dead: a pizza with pineapple
"""

import queue

from rucola.client import MessageExt, ReconsumeLater
from rucola.client.sync import Message, Producer, PushConsumer

with Producer("shop") as producer:
    producer.send(Message("RejectedOrders", b"a pizza with pineapple"))

tries: "queue.Queue[int]" = queue.Queue()


def cook(message: MessageExt) -> None:
    tries.put(message.reconsume_times)
    raise ReconsumeLater(delay_level=1)  # after a second; other exceptions after 10 s, 30 s, 1 min …


kitchen = PushConsumer("rejecting-kitchen", max_reconsume_times=2)  # 16 by default
kitchen.subscribe("RejectedOrders")
kitchen.listen(cook)
with kitchen:
    print(f"tried {len([tries.get(timeout=60) for _ in range(3)])} times")

# `rucola admin printDlq` shows them as well, and `rucola admin redriveDlq` sends them to their topic again.
chef = PushConsumer("rejecting-chef")
chef.subscribe("%DLQ%rejecting-kitchen")
with chef:
    for message in chef:
        print("dead:", message.body.decode())
        chef.ack(message)
        break
