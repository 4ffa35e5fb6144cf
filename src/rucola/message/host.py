"""Host fields of records: bornHost and storeHost.

    IPv4   4 bytes address, 4 bytes port        8 bytes
    IPv6  16 bytes address, 4 bytes port       20 bytes

As text `address:port`. IPv6 addresses are formatted as Java does, `0:0:0:0:0:0:0:1:10911`; all usual spellings are
parsed, with or without brackets. Host names are not resolved.

Counterpart of java.net.InetSocketAddress as org.apache.rocketmq.common.message.MessageExt uses it.
"""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache

from rucola.errors import InvalidMessage


@lru_cache(maxsize=4096)
def encode_host(host: str) -> bytes:
    """Encode `address:port` as 8 or 20 bytes. Raises InvalidMessage."""
    address, separator, port = host.rpartition(":")
    if address[:1] == "[" and address[-1:] == "]":
        address = address[1:-1]
    try:
        if not separator or not port.isascii() or not port.isdigit() or int(port) > 0xFFFF:
            raise ValueError("the port must be a number from 0 to 65535")
        return ipaddress.ip_address(address).packed + struct.pack(">I", int(port))
    except ValueError as error:
        raise InvalidMessage(f"{host!r} is not an address:port with a numeric IP address: {error}") from error


@lru_cache(maxsize=4096)
def decode_host(data: bytes) -> str:
    """Decode a host field of 8 or 20 bytes. Raises InvalidMessage for another size or an invalid port."""
    if len(data) == 8:
        a, b, c, d, port = struct.unpack(">4BI", data)
        address = f"{a}.{b}.{c}.{d}"
    elif len(data) == 20:
        *groups, port = struct.unpack(">8HI", data)
        address = ":".join([f"{group:x}" for group in groups])
    else:
        raise InvalidMessage(f"a host field has 8 or 20 bytes, not {len(data)}")
    if port > 0xFFFF:
        raise InvalidMessage(f"the host field {data.hex()} contains port {port}; the highest is 65535")
    return f"{address}:{port}"
