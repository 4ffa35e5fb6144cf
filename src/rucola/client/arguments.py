"""Checks of what a program passes to a client: the error names the argument, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args

import msgspec

from rucola.domain.queue import MessageQueue
from rucola.errors import ConfigError, InvalidMessage
from rucola.message import MessageExt
from rucola.message.topics import check_group

O = TypeVar("O", bound=msgspec.Struct)  # noqa: E741

CLIENT_OPTIONS = ("namesrv", "instance", "tls", "credentials")


def options_of(kind: type[O], given: Mapping[str, Any], client: str) -> O:
    """Return the options of a client from its keyword arguments. TypeError for an unknown one, ConfigError."""
    for name in given:
        if name not in kind.__struct_fields__:
            near = get_close_matches(name, [*kind.__struct_fields__, *CLIENT_OPTIONS])
            hint = f"did you mean {' or '.join(near)}?" if near else f"see {kind.__name__}"
            raise TypeError(f"{client} got an unexpected keyword argument {name!r}: {hint}")
    return kind(**given)


def check_options(options: msgspec.Struct, **least: int) -> None:
    """Raise ConfigError for a flag or number of another type, or a number below `least`, which is 0 by default."""
    for field in msgspec.structs.fields(options):
        kinds = set(get_args(field.type)) if isinstance(field.type, UnionType) else {field.type}
        value = getattr(options, field.name)
        if value is None and NoneType in kinds:
            continue
        if bool in kinds and not isinstance(value, bool):
            raise ConfigError(f"{field.name} is {value!r}: it must be True or False", subject=field.name)
        if kinds & {int, float}:
            check_number(field.name, value, Real if float in kinds else Integral, least.get(field.name, 0))


def check_number(name: str, value: Any, kind: type = Integral, least: int = 0) -> None:
    """Raise ConfigError unless `value` is a number of this kind, and `least` or more."""
    is_of_kind = isinstance(value, kind) and not isinstance(value, bool)
    if not is_of_kind or not value >= least:  # also refuses NaN
        of_kind = "an int" if kind is Integral else "a number"
        raise ConfigError(f"{name} is {value!r}: it must be {of_kind}, {least} or more", subject=name)


def check_received(message: object) -> None:
    """Raise InvalidMessage for what is no message of a consumer."""
    if not isinstance(message, MessageExt):
        raise InvalidMessage(
            f"a {type(message).__name__} is no MessageExt: pass a message that a consumer has received"
        )


def check_queue(queue: object) -> None:
    """Raise ConfigError for what is no queue."""
    if not isinstance(queue, MessageQueue):
        raise ConfigError(f"{queue!r:.50} is no MessageQueue: take one of `queues(topic)`", subject="queue")


def check_group_name(group: str) -> None:
    """Raise ConfigError unless `group` is a valid group name."""
    try:
        check_group(group)
    except InvalidMessage as error:
        raise ConfigError(str(error), subject="group") from None
