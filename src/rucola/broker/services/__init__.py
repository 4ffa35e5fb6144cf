"""The broker's services: the use cases of a broker, independent of any wire protocol.

    adapter (broker/remoting)      decodes a request, calls the service, encodes its result
    interceptors                   see caller, action and resource of every request, and may raise Refused
    service (here)                 accepts a typed request, returns a typed result or raises Refused

A service imports neither commands, frames nor response codes, and no connection (tests/test_house.py). It may use the
plain structs of `rucola.protocol`: request headers serve as typed requests. Services reach clients through the
protocols `ClientChannel` and `ClientCalls`, which the adapters implement.
"""
