"""Send a message that is seen if, and only if, work of your own succeeds.

It prints:

    order-1 COMMIT_MESSAGE
    order-2 ROLLBACK_MESSAGE
    seen: order-1
"""

from rucola.client import LocalTransactionState, MessageExt
from rucola.client.sync import Message, PushConsumer, TransactionProducer

booked: set[str] = set()  # the database of this program


def book(message: Message) -> LocalTransactionState:
    """The work. It runs while the message is kept where nobody sees it."""
    if message.body == b"a pizza with pineapple":
        return LocalTransactionState.ROLLBACK_MESSAGE
    booked.add(message.keys or "")
    return LocalTransactionState.COMMIT_MESSAGE


def look_up(message: MessageExt) -> LocalTransactionState:
    """Asked by the broker where it was not told the end, perhaps after a crash, perhaps in another process."""
    done = message.keys in booked
    return LocalTransactionState.COMMIT_MESSAGE if done else LocalTransactionState.ROLLBACK_MESSAGE


with TransactionProducer("shop", check=look_up, topics=["Orders"]) as producer:
    for key, body in (("order-1", b"one pizza"), ("order-2", b"a pizza with pineapple")):
        result = producer.send_in_transaction(Message("Orders", body, keys=key), book)
        print(key, result.state.name)

consumer = PushConsumer("kitchen")
consumer.subscribe("Orders")
with consumer:
    print("seen:", next(iter(consumer)).keys)
