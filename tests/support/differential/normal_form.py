"""Responses in the recorded form, without the identifiers, addresses and times of one run."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from typing import Any

from rucola import fastjson
from rucola.errors import RemoteProtocolError
from rucola.protocol.codes import RequestCode
from rucola.protocol.command import RemotingCommand

LARGE_BODY = 1000
"""Size from which the recording holds a message's body as its size and a hash."""
WITH_MESSAGES = {RequestCode.PULL_MESSAGE, RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID}

_TIME = re.compile(r"\b1[5-9]\d{11}\b")
_HOST = re.compile(r"\b127\.0\.0\.1:\d+\b")
_OFFSET_MSG_ID = re.compile(r"\b7F000001[0-9A-F]{24}\b")


class NormalForm:
    """Converts the responses to one sequence into the recorded form."""

    def __init__(self, suffix: str, broker: str, namesrv: str) -> None:
        self._suffix = suffix
        self._addresses = {broker: "<BR>", namesrv: "<NS>"}
        host, _, port = broker.rpartition(":")
        self._store_host = bytes(map(int, host.split("."))).hex() + int(port).to_bytes(4, "big").hex()

    def answer(self, code: int, answer: RemotingCommand) -> dict[str, Any]:
        """Convert the response to a request with this code."""
        ext: dict[str, Any] = dict(answer.ext_fields)
        if ext.get("msgId"):
            ext["msgId"] = f"<OFFID>*{ext['msgId'].count(',') + 1}"
        ext.pop("indexLastUpdatePhyoffset", None)
        body: Any = None
        if code in WITH_MESSAGES:
            body = self.messages(answer.body)
        elif answer.body:
            try:
                body = self.value(fastjson.loads(answer.body))
            except RemoteProtocolError:
                body = None  # a configuration
        if code == RequestCode.GET_BROKER_CONFIG:
            ext["version"] = fastjson.loads(ext["version"])
        return {
            "code": answer.code,
            "flag": answer.flag,
            "remark": answer.remark and "R",
            "ext": self.value(ext),
            "body": body,
        }

    def messages(self, data: bytes) -> list[dict[str, Any]]:
        """Decode the records of a body, field by field."""
        return list(self._records(data))

    def text(self, text: str) -> str:
        """Replace the names, addresses and times of this run in a text."""
        text = text.replace(self._suffix, "{N}")
        for address, name in self._addresses.items():
            text = text.replace(address, name)
        text = _OFFSET_MSG_ID.sub("<OFFID>*1", _HOST.sub("<HOST>", text))
        return _TIME.sub("<T>", text)

    def value(self, value: Any) -> Any:
        """Do the same in a JSON value, at any depth; keys become text."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            return {self._key(name): self.value(member) for name, member in value.items()}
        return "<T>" if isinstance(value, int) and _TIME.fullmatch(str(value)) else value

    def _key(self, name: Any) -> str:
        if isinstance(name, fastjson.ObjectKey):
            return self.text(json.dumps(name.as_dict(), sort_keys=True))
        return self.text(str(name))

    def _records(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the records of a body. Unlike `rucola.message.record`, this validates nothing."""
        at = 0
        while at < len(data):
            size, magic, _, queue_id, flag, queue_offset, _, sys_flag = struct.unpack_from(">iIiiiqqi", data, at)
            position = at + 48
            hosts = []
            for v6, behind in ((16, 8), (32, 0)):
                end = position + (20 if sys_flag & v6 else 8)
                hosts.append(data[position:end].hex())
                position = end + behind
            reconsume_times, prepared_offset, body_size = struct.unpack_from(">iqi", data, position)
            body_end = position + 16 + body_size
            topic_end = body_end + 1 + data[body_end]
            (properties_size,) = struct.unpack_from(">h", data, topic_end)
            properties = data[topic_end + 2 : topic_end + 2 + properties_size].decode()
            body = data[position + 16 : body_end].hex()
            pairs = [segment.partition("\x01") for segment in properties.split("\x02") if segment]
            yield {
                "queueId": queue_id,
                "flag": flag,
                "queueOffset": queue_offset,
                "sysFlag": sys_flag,
                "born": "<T>",
                "magic": magic,
                "bornHost": hosts[0][:-8],
                "storeHost": "ok" if hosts[1] == self._store_host else hosts[1],
                "reconsume": reconsume_times,
                "pto": "<P>" if prepared_offset else 0,
                "body": body if body_size < LARGE_BODY else [body_size, 0],
                "topic": self.text(data[body_end + 1 : topic_end].decode()),
                "propsEnd": properties.endswith("\x02"),
                "props": {self.text(name): self.text(value) for name, _, value in pairs},
            }
            at += size
