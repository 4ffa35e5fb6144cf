"""Keys of Apache's configuration of Netty, the library under its remoting, which have no meaning here.

Corresponds to `NettyServerConfig` and `NettyClientConfig` of Apache RocketMQ 4.9.8.
"""

from __future__ import annotations

from typing import Final

_BUFFERS: Final = frozenset({"writeBufferHighWaterMark", "writeBufferLowWaterMark"})

NETTY_SERVER_KEYS: Final = _BUFFERS | {
    "serverAsyncSemaphoreValue",
    "serverCallbackExecutorThreads",
    "serverOnewaySemaphoreValue",
    "serverPooledByteBufAllocatorEnable",
    "serverSelectorThreads",
    "serverSocketBacklog",
    "serverSocketRcvBufSize",
    "serverSocketSndBufSize",
    "serverWorkerThreads",
    "useEpollNativeSelector",
}
"""Keys of the part that accepts connections."""
NETTY_CLIENT_KEYS: Final = _BUFFERS | {
    "channelNotActiveInterval",
    "clientAsyncSemaphoreValue",
    "clientCallbackExecutorThreads",
    "clientChannelMaxIdleTimeSeconds",
    "clientCloseSocketIfTimeout",
    "clientOnewaySemaphoreValue",
    "clientPooledByteBufAllocatorEnable",
    "clientSocketRcvBufSize",
    "clientSocketSndBufSize",
    "clientWorkerThreads",
    "connectTimeoutMillis",
    "useTLS",
}
"""Keys of the part that opens connections."""
