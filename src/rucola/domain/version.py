"""The protocol version: Apache RocketMQ 4.9.8."""

from __future__ import annotations

from typing import Final

VERSION: Final = 409
"""V4_9_8 in `MQVersion`. Some clients select features by it."""

VERSION_TEXT: Final = "V4_9_8"
