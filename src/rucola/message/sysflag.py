"""Bits of a record's sysFlag.

    bit      10 9 8            7           6            5          4         3 2          1           0
    meaning  compression type  inner batch need unwrap  storeHost  bornHost  transaction  multi tags  compressed
                                                        is IPv6    is IPv6   state

    compression type  1 LZ4, 2 ZSTD, 3 zlib; 0 also means zlib, from clients that support no other
    transaction       0 none, 1 prepared (half), 2 committed, 3 rolled back

Counterpart of org.apache.rocketmq.common.sysflag.MessageSysFlag.
"""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2

TRANSACTION_NOT: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC

BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
HOSTS_V6: Final = BORN_HOST_V6 | STORE_HOST_V6

NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80

COMPRESSION_MASK: Final = 0x700
COMPRESSION_SHIFT: Final = 8


def transaction_state(sys_flag: int) -> int:
    return sys_flag & TRANSACTION_MASK


def with_transaction_state(sys_flag: int, state: int) -> int:
    return (sys_flag & ~TRANSACTION_MASK) | state


def is_dispatched(sys_flag: int) -> bool:
    """Return whether a record gets a ConsumeQueue unit: not if prepared or rolled back (their queueOffset is 0)."""
    return not sys_flag & TRANSACTION_PREPARED


def body_flags(sys_flag: int) -> int:
    return sys_flag & (COMPRESSED | COMPRESSION_MASK)


def host_sizes(sys_flag: int) -> tuple[int, int]:
    """Return the sizes of bornHost and storeHost in bytes, port included: 8 with IPv4, 20 with IPv6."""
    return (20 if sys_flag & BORN_HOST_V6 else 8), (20 if sys_flag & STORE_HOST_V6 else 8)
