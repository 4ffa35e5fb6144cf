"""The broker's services: the use cases of a broker, independent of any wire protocol.

    adapter (broker/remoting)      decodes a request, calls the service, encodes its result
    interceptors                   see caller, action and resource of every request, and may raise Refused
    service (here)                 takes a typed request, returns a typed result or raises Refused

A service imports neither commands, frames nor response codes, and no connection (tests/test_house.py). It may use the
plain structs of `rucola.protocol`: request headers serve as typed requests where their fields are the arguments of
the use case, so that a message crosses no second object on its way. Services reach clients through two protocols,
`ClientChannel` and `ClientCalls`, which the adapters implement.

A second protocol, such as gRPC, would be a second package of adapters over the same services.
"""
