"""Arguments of commands from outside: parsed from text, described by a JSON schema, written as a command line.

A form, a query string and a JSON object give texts and JSON's scalars by name; a `Target` is given as `address` or
`cluster`. Arguments that are files of the caller's machine exist on the command line only.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rucola.admin.commands.command import Argument, Command, InvalidArguments, Target
from rucola.errors import ConfigError, RemotingConnectError
from rucola.presentation import parse_time
from rucola.remoting.client import host_and_port

FILES: Final = {"file", "new file", "directory", "lake", "outbox"}
"""Formats of arguments that name a file of the caller's machine, or a database."""
_JSON_TYPES: Final = {int: "integer", float: "number", bool: "boolean", str: "string"}
_TRUE, _FALSE = {"true", "1", "on", "yes"}, {"false", "0", "off", "no"}


class InvalidArgument(InvalidArguments):
    """A missing, unknown or malformed argument; `subject` is its name."""


def remote_arguments(one: Command) -> Iterator[Argument]:
    """Yield the arguments that a caller on another machine may give."""
    return (argument for argument in one.arguments() if argument.option.format not in FILES)


def is_local(one: Command) -> bool:
    """Whether the command needs a file of the caller's machine."""
    return any(argument.is_required and argument.option.format in FILES for argument in one.arguments())


def parse(one: Command, given: Mapping[str, object]) -> dict[str, Any]:
    """Return the arguments of `call` by name; a blank text is an argument that is not given. Raises InvalidArgument."""
    texts = {name: text for name, value in given.items() if (text := _text(value)).strip()}
    parsed: dict[str, Any] = {}
    for argument in remote_arguments(one):
        if argument.type is Target:
            address, cluster = texts.pop("address", None), texts.pop("cluster", None)
            if argument.is_required and (address is None) == (cluster is None):
                raise InvalidArgument("name either a broker (address) or a cluster", subject="cluster")
            parsed[argument.name] = Target(
                None if address is None else _address(address.strip(), "address"), cluster and cluster.strip()
            )
        elif argument.name in texts:
            parsed[argument.name] = _parse(argument, texts.pop(argument.name))
        elif argument.is_required:
            raise InvalidArgument(f"{argument.name} is missing: {argument.option.help}", subject=argument.name)
    for name in texts:
        known = ", ".join(schema(one)["properties"])
        raise InvalidArgument(f"{one.name} has no argument {name}; it has {known or 'none'}", subject=name)
    return parsed


def _text(value: object) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _parse(argument: Argument, text: str) -> Any:
    option, name = argument.option, argument.name
    if option.format == "text":
        return text
    text = text.strip()
    if option.choices and text not in option.choices:
        raise InvalidArgument(f"{name} {text!r}: expected one of {', '.join(option.choices)}", subject=name)
    match option.format:
        case "address":
            return _address(text, name)
        case "time or end" if text in ("-1", "now"):
            return -1
        case "time" | "time or end":
            try:
                return parse_time(text)
            except ValueError:
                expected = "2013-01-01T05:15:00, milliseconds since 1970, or now"
                raise InvalidArgument(f"{name} {text!r} is no time: expected {expected}", subject=name) from None
    if argument.type is bool:
        if text.lower() not in _TRUE | _FALSE:
            raise InvalidArgument(f"{name} {text!r}: expected true or false", subject=name)
        return text.lower() in _TRUE
    if argument.type not in (int, float):
        return text
    try:
        number: float = argument.type(text)
    except ValueError:
        number = math.nan
    lowest = -math.inf if option.min is None else option.min
    highest = math.inf if option.max is None else option.max
    if not lowest <= number <= highest or (argument.type is float and not math.isfinite(number)):
        limits = f" from {option.min}" * (option.min is not None) + f" up to {option.max}" * (option.max is not None)
        raise InvalidArgument(f"{name} {text!r}: expected a number{limits}", subject=name)
    return number


def _address(text: str, name: str) -> str:
    try:
        host_and_port(text)
    except RemotingConnectError as error:
        raise InvalidArgument(str(error), subject=name) from None
    return text


def schema(one: Command) -> dict[str, Any]:
    """Return the JSON schema of the arguments, an object."""
    properties: dict[str, Any] = {}
    required = []
    for argument in remote_arguments(one):
        option = argument.option
        if argument.type is Target:
            properties["address"] = {"type": "string", "description": "Address of one broker, host:port."}
            properties["cluster"] = {"type": "string", "description": option.help}
            continue
        is_text = bool(option.format)  # times may be written as texts
        described: dict[str, Any] = {
            "type": "string" if is_text else _JSON_TYPES[argument.type], "description": option.help,
        }  # fmt: skip
        limits = {"minimum": option.min, "maximum": option.max, "enum": option.choices or None}
        described |= {key: value for key, value in limits.items() if value is not None}
        if argument.default is not None and not is_text:
            described["default"] = argument.default
        if option.prompt:
            described["format"] = "password"
        properties[argument.name] = described
        if argument.is_required:
            required.append(argument.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def command_line(one: Command, arguments: Mapping[str, Any]) -> str:
    """Return the command line that does the same; a secret is written as -, which asks for it."""
    words = ["rucola", "admin", one.name]
    for argument in one.arguments():
        value = arguments.get(argument.name, argument.default)
        if value is None or (not argument.is_required and value == argument.default):
            continue
        flag = argument.option.flags.split()[0]
        if isinstance(value, Target):
            words += ["-b", value.address] if value.address else ["-c", value.cluster] if value.cluster else []
        elif argument.is_flag:
            words.append(flag)
        else:
            words += [flag, "-" if argument.option.prompt else _text(value)]
    return shlex.join(words)


def check_remote(one: Command) -> None:
    """Raise ConfigError for a command that exists on the command line only."""
    if is_local(one):
        raise ConfigError(f"{one.name} reads or writes a file of your machine: use rucola admin", subject=one.name)
