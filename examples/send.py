"""Send one message and wait until the broker has it, in plain blocking calls.

It prints:

    stored, offset 0
"""

from rucola.client.sync import Message, Producer

with Producer("shop") as producer:
    result = producer.send(Message("Orders", b"one pizza", tags="food", keys="order-1"))
    print(f"stored, offset {result.queue_offset}")
