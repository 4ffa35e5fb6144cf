"""Send one message with the blocking client and wait until it is stored.

It prints:

    SEND_OK
"""

from rucola.client.sync import Message, Producer

with Producer("shop") as producer:
    result = producer.send(Message("SentOrders", b"one pizza", tags="food", keys="order-1"))
    print(result.status.name)
