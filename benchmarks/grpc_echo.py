"""The floor of gRPC calls in Python: a server of grpc.aio whose one method returns the message.

python grpc_echo.py
"""

from __future__ import annotations

import asyncio
import signal

import grpc
import grpc.aio


async def echo(message: bytes, context: object) -> bytes:
    return message


async def serve() -> None:
    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("Echo", {"Echo": method}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready 127.0.0.1:{port}", flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await server.stop(None)


if __name__ == "__main__":
    asyncio.run(serve())
