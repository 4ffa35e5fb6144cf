"""Send messages that consumers see only if a local transaction commits.

It prints:

    order-1 COMMIT_MESSAGE
    order-2 ROLLBACK_MESSAGE
    seen: order-1
"""

from rucola.client import LocalTransactionState, MessageExt
from rucola.client.sync import Message, PushConsumer, TransactionProducer

booked: set[str] = set()  # stands for a database


def book(message: Message) -> LocalTransactionState:
    """Execute the local transaction, while the half message is invisible to consumers."""
    if message.body == b"a pizza with pineapple":
        return LocalTransactionState.ROLLBACK_MESSAGE
    booked.add(message.keys or "")
    return LocalTransactionState.COMMIT_MESSAGE


def look_up(message: MessageExt) -> LocalTransactionState:
    """Return the outcome, if the broker checks a transaction that stayed open; possibly in another process."""
    done = message.keys in booked
    return LocalTransactionState.COMMIT_MESSAGE if done else LocalTransactionState.ROLLBACK_MESSAGE


with TransactionProducer("booking-shop", check=look_up, topics=["BookedOrders"]) as producer:
    for key, body in (("order-1", b"one pizza"), ("order-2", b"a pizza with pineapple")):
        result = producer.send_in_transaction(Message("BookedOrders", body, keys=key), book)
        print(key, result.state.name)

consumer = PushConsumer("booked-kitchen")
consumer.subscribe("BookedOrders")
with consumer:
    for message in consumer:
        print("seen:", message.keys)
        consumer.ack(message)
        break
