"""Netty's settings, without effect here. Corresponds to Apache's `NettyServerConfig` and `NettyClientConfig`."""

from __future__ import annotations

from typing import Final

_BUFFERS: Final = {"writeBufferHighWaterMark": "0", "writeBufferLowWaterMark": "0"}

NETTY_SERVER_SETTINGS: Final = _BUFFERS | {
    "serverAsyncSemaphoreValue": "64",
    "serverCallbackExecutorThreads": "0",
    "serverOnewaySemaphoreValue": "256",
    "serverPooledByteBufAllocatorEnable": "true",
    "serverSelectorThreads": "3",
    "serverSocketBacklog": "1024",
    "serverSocketRcvBufSize": "0",
    "serverSocketSndBufSize": "0",
    "serverWorkerThreads": "8",
    "useEpollNativeSelector": "false",
}
NETTY_CLIENT_SETTINGS: Final = _BUFFERS | {
    "channelNotActiveInterval": "60000",
    "clientAsyncSemaphoreValue": "65535",
    "clientCallbackExecutorThreads": "2",
    "clientChannelMaxIdleTimeSeconds": "120",
    "clientCloseSocketIfTimeout": "true",
    "clientOnewaySemaphoreValue": "65535",
    "clientPooledByteBufAllocatorEnable": "false",
    "clientSocketRcvBufSize": "0",
    "clientSocketSndBufSize": "0",
    "clientWorkerThreads": "4",
    "connectTimeoutMillis": "3000",
    "useTLS": "false",
}
