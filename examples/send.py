"""Send one message with the blocking client and wait until it is stored.

It prints:

    stored, offset 0
"""

from rucola.client.sync import Message, Producer

with Producer("shop") as producer:
    result = producer.send(Message("Orders", b"one pizza", tags="food", keys="order-1"))
    print(f"stored, offset {result.queue_offset}")
