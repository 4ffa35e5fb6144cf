"""Send messages of one topic in one request: stored together in one queue, or not at all.

It prints:

    3 stored in 1 queue
"""

from rucola.client.sync import Message, Producer

with Producer("shop") as producer:
    results = producer.send_batch(Message("SentBatchOrders", body) for body in (b"pizza", b"pasta", b"tiramisu"))
    print(f"{len(results)} stored in {len({result.queue for result in results})} queue")
