"""The broker's services: the use cases of a broker, independent of any wire protocol.

    adapter (broker/remoting)      decodes a request, calls the service, encodes its result
    interceptors                   see caller, action and resource of every request, and may raise Refused
    service (here)                 accepts domain values, returns some or raises Refused

A service imports neither `rucola.protocol` nor a connection (tests/test_house.py). Services reach clients through the
protocols `ClientChannel`, `ConsumerCalls` and `ProducerCalls`, which the adapters implement. A method that waits for
nothing is a plain function; a long one is a coroutine, or a generator of steps (`rucola.slices`).
"""
