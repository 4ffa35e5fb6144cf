"""Adapters of RocketMQ 5's gRPC protocol, over the same services as `broker/remoting`.

    methods      a method with its action and resource, compiled with the interceptors and the gate
    codes        codes for refusals
    messages     messages to and from the records of the store
    routes       QueryRoute
    send         SendMessage, RecallMessage and EndTransaction
    receive      ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue, QueryAssignment
    clients      Telemetry, Heartbeat, NotifyClientTermination; calls to clients
    discovery    health checks and reflection
    service      all methods

A failed call is a response with a code, as clients expect, and OK for gRPC itself. Its methods that are not listed here
answer NOT_IMPLEMENTED.

Corresponds to the package `grpc.v2` of the proxy of Apache RocketMQ 5.
"""
