"""Handle errors of sending: each has a type, and all of them are MQError.

It prints:

    InvalidMessage: a message for topic RefusedOrders has an empty body; no broker takes one
    RemotingConnectError
"""

from rucola.client.sync import Message, Producer
from rucola.errors import InvalidMessage, MQError, SendFailed

with Producer("shop") as producer:
    try:
        producer.send(Message("RefusedOrders", b""))
    except InvalidMessage as error:
        print(f"InvalidMessage: {error}")

with Producer("shop", namesrv="127.0.0.1:1") as producer:  # nothing listens there
    try:
        producer.send(Message("RefusedOrders", b"one pizza"))
    except SendFailed as error:  # no broker accepted it: `attempts` has the queue and the error of each attempt
        print(error.attempts)
    except MQError as error:
        print(type(error).__name__)
