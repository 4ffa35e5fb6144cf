"""Comparison of a replay with its recording: one line per difference.

A line is `request member: Apache's value -> Rucola's value`, for example `2 ext.queueOffset: "1" -> "0"`. If the codes
of two responses differ, nothing else of them is compared. `state` in place of the request's number means the tables and
queues after the last request. A long value is truncated and followed by its CRC-32.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

from rucola.domain.group import SYSTEM_GROUPS
from rucola.message.topics import TRACE_TOPIC
from rucola.protocol.codes import RequestCode, ResponseCode
from support.differential.recording import BROKER, Sequence

ABSENT = "<absent>"
LONGEST = 60
_TIME_TEXT = re.compile(r"20\d\d-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}")
_RATES = {"consumeTps", "tps", "avgpt", "sum", "totalDiff"}
_OF_OTHERS = re.compile(r"z\d+x\d+z|CID_RMQ_SYS_TRANS|scheduleMessageOffset_\d+")
"""Names with the suffix of another sequence, the group that consumes half messages, delay levels in use."""
_POSTPONED = re.compile("TRAN_MSG\x01true|DELAY\x01[1-9]", re.IGNORECASE)
_SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
_NAMES_ONLY = {
    RequestCode.GET_ALL_TOPIC_CONFIG,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
}
"""Responses of which the recording holds only names: the members of the body, or the groups of one sequence."""
_WITH_RENAMED_BROKER = {"brokerDatas", "queueDatas", "DC"}
"""Lists that hold the recorded broker under both of its names."""


def differences(sequence: Sequence, answers: list[dict[str, Any]], state: dict[str, Any]) -> list[str]:
    """Return one line for each difference between a replay and its recording."""
    lines = []
    asked = [(index, request) for index, request in enumerate(sequence.requests) if "s" in request]
    for (index, request), theirs, ours in zip(asked, sequence.answers, answers, strict=True):
        if theirs.get("body") is not None and ours.get("body") is not None:
            ours = ours | {"body": _as_detailed(request, theirs["body"], ours["body"])}
        elif request["code"] == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
            ours = ours | {"body": None}  # the recording has none, wire.jsonl does
        theirs, ours = _answer(request, theirs), _answer(request, ours)
        if theirs.get("code") != ours.get("code"):
            theirs, ours = ({"code": answer.get("code", next(iter(answer)))} for answer in (theirs, ours))
        lines += _lines(str(index), theirs, ours)
    return lines + _lines("state", _comparable(sequence.state), _comparable(state))


def _as_detailed(request: dict[str, Any], theirs: Any, ours: Any) -> Any:
    """Reduce a replayed body to the detail of the recorded one: to a mark that there is a body, or to names."""
    if theirs in ("x", "dict"):
        return theirs
    if request["s"] != BROKER or request["code"] not in _NAMES_ONLY or isinstance(ours, str):
        return ours
    (table,) = [value for name, value in ours.items() if name in ("table", "subscriptionGroupTable")] or [ours]
    if request["code"] == RequestCode.GET_BROKER_RUNTIME_INFO:
        return [re.sub("_/.*/commitlog", "_STORE/a/store/commitlog", name) for name in table]
    if request["code"] == RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG and "dataVersion" not in theirs:
        return [name for name in table if "{N}" in name]
    return list(ours)


def _answer(request: dict[str, Any], answer: dict[str, Any]) -> Any:
    """Normalize a response: replace offsets in queues and versions of tables that sequences share.

    With SUCCESS, Apache's remark is a leftover ("not set any response code") and Rucola's is empty, except for a pull,
    whose remark is its status.
    """
    answer = _comparable(answer)
    ext = request["ext"] or {}
    if answer.get("code") == ResponseCode.SUCCESS and request["code"] != RequestCode.PULL_MESSAGE:
        answer["remark"] = None
    if request["code"] in _SENDS and "queueOffset" in answer.get("ext", {}) and _goes_to_shared_queue(ext):
        answer["ext"]["queueOffset"] = "<R>"
    if request["code"] == RequestCode.QUERY_DATA_VERSION and ext.get("brokerName") == "bdiff":
        answer["body"]["counter"] = "<R>"
    if request["code"] == RequestCode.GET_BROKER_CONSUME_STATS and isinstance(answer["body"], dict):
        groups = answer["body"]["consumeStatsList"]
        answer["body"]["consumeStatsList"] = [item for item in groups if _names_group_of_system(item)]
    if request["code"] == RequestCode.GET_MAX_OFFSET and ext.get("topic") == TRACE_TOPIC:
        answer["ext"]["offset"] = "<R>"
    return answer


def _names_group_of_system(item: dict[str, Any]) -> bool:
    return not SYSTEM_GROUPS.keys().isdisjoint(item)


def _goes_to_shared_queue(ext: dict[str, str]) -> bool:
    """Return whether a message with this header goes to a queue that other sequences use."""
    topic = ext.get("b") or ext.get("topic") or ""
    return "{" not in topic or bool(_POSTPONED.search(ext.get("i") or ext.get("properties") or ""))


def _comparable(value: Any, name: str = "") -> Any:
    """Normalize a value: remove names of other sequences, replace rates, offsets and durations, sort lists."""
    if isinstance(value, dict):
        if value.get("brokerName") == "x" and "brokerAddrs" in value:
            value = value | {"brokerAddrs": {"0": "<BR>"}}
        return {
            _renamed_back(key): _comparable(member, key)
            for key, member in value.items()
            if not _OF_OTHERS.search(key) and key != "null"
        }
    if isinstance(value, list):
        if name == "body" and value and isinstance(value[0], int):
            return f"<{value[0]} bytes>"
        items = [_comparable(item, name) for item in value if not _is_of_others(item)]
        if name in _WITH_RENAMED_BROKER:
            items = list({json.dumps(item, sort_keys=True): item for item in items}.values())
        return sorted(items, key=_order)
    if name in _RATES:
        return "<R>"
    if name == "physicOffset":
        return "<P>"
    if name == "delayTime":
        return value and "<T>"
    if name.endswith("Str"):
        return _TIME_TEXT.sub("<T>", value)
    return _renamed_back(value) if name in ("brokerName", "DC") else value


def _is_of_others(item: Any) -> bool:
    names = [item] if isinstance(item, str) else list(item) if isinstance(item, dict) else []
    return bool(names) and all(_OF_OTHERS.search(name) for name in names)


def _order(item: Any) -> str:
    """Return the sort key of a list item: messages by queue offset, then the end of their queue."""
    key = [item["queueOffset"]] if isinstance(item, dict) and "queueOffset" in item else []
    return json.dumps([isinstance(item, list), *key, item], sort_keys=True)


def _renamed_back(name: str) -> str:
    """Undo UPDATE_BROKER_CONFIG brokerName=x, which the recorded broker accepted and Rucola refuses."""
    return "bdiff" if name == "x" else name


def _lines(where: str, theirs: Any, ours: Any) -> list[str]:
    return [f"{where} {path}: {_text(a)} -> {_text(b)}" for path, a, b in _unequal("", theirs, ours)]


def _unequal(path: str, theirs: Any, ours: Any) -> Iterator[tuple[str, Any, Any]]:
    if theirs == ours:
        return
    if isinstance(theirs, list) and isinstance(ours, list):
        theirs, ours = _members(theirs), _members(ours)
    if not isinstance(theirs, dict) or not isinstance(ours, dict):
        yield path, theirs, ours
        return
    for name in theirs | ours:
        yield from _unequal(f"{path}.{name}".lstrip("."), theirs.get(name, ABSENT), ours.get(name, ABSENT))


def _members(items: list[Any]) -> dict[Any, Any]:
    """Return the items of a list by name if they are names, else by index; the end of a queue is `end`."""
    if all(isinstance(item, str) for item in items):
        return dict.fromkeys(items, "listed")
    return {"end" if isinstance(item, list) else number: item for number, item in enumerate(items)}


def _text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… {zlib.crc32(text.encode()):08x}"
