"""gRPC, as a server and as a client: HTTP/2 as far as gRPC needs it.

    frames       the layout of frames, and header blocks to send
    headers      header blocks that are received
    connection   one connection's state, without I/O: bytes in, streams and bytes out
    grpc         calls and methods on streams
    server       connections on asyncio
    client       a channel: calls over connections that are opened on demand

It knows nothing of RocketMQ. Not implemented, since no gRPC client needs them:
server push, priorities, the upgrade from HTTP/1.1, compressed responses.
"""
