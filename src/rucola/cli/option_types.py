"""Types of option values: paths, times, addresses and lists of name servers; and the option `-n`."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from rucola.errors import ConfigError, RemotingConnectError
from rucola.files import local_path
from rucola.name_server_addresses import NAMESRV_VARIABLES
from rucola.presentation import parse_time
from rucola.remoting.client import host_and_port


class TimeType(click.ParamType[int]):
    """A time in any format of `parse_time`, as milliseconds; with `latest`, now and -1 are the end (-1)."""

    name = "time"

    def __init__(self, *, latest: bool = False) -> None:
        self._latest = latest

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self._latest and value.strip() in ("-1", "now"):
            return -1
        try:
            return parse_time(value)
        except ValueError:
            self.fail(
                f"{value} is not a time: write 2013-01-01T05:15:00 (local), 2013-01-01T05:15:00Z, "
                "2013-01-01#05:15:00:000, milliseconds since 1970, or now",
                param,
                ctx,
            )


class AddressType(click.ParamType[str]):
    """The address of one server, `host:port`; with `several`, addresses joined by semicolons or commas."""

    name = "host:port"

    def __init__(self, *, several: bool = False) -> None:
        self._several = several

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        addresses = re.split("[;,]", value) if self._several else [value]
        given = [address.strip() for address in addresses if address.strip()]
        try:
            for address in given:
                host, _ = host_and_port(address)
                if not self._several and set(";,") & set(host):
                    self.fail(f"{value!r} has several addresses: give one", param, ctx)
        except RemotingConnectError as error:
            self.fail(str(error), param, ctx)
        if not given:
            self.fail(f"{value!r} is no address: write host:port", param, ctx)
        return str(value)


class PathType(click.Path):
    """A path on this machine (see `files.local_path`), as a Path; accepts the arguments of `click.Path`."""

    def __init__(self, *, exists: bool = False, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(exists, file_okay, dir_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            path = local_path(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if not self.file_okay and os.path.exists(path) and not os.path.isdir(path):
            self.fail(f"Directory '{path}' is a file.", param, ctx)  # click takes devices, such as /dev/null
        return super().convert(path, param, ctx)


class DurationRange(click.FloatRange):
    """A number of seconds or hours, finite and not NaN."""

    name = "duration"
    LONGEST: Final = 1e9

    def __init__(self, least: float = 0) -> None:
        super().__init__(least, self.LONGEST)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        converted = float(super().convert(value, param, ctx))
        if math.isnan(converted):
            self.fail(f"{value} is no number", param, ctx)
        return converted


TIME: Final = TimeType()
ADDRESS: Final = AddressType()
ADDRESSES: Final = AddressType(several=True)

Command = TypeVar("Command", bound=Callable[..., Any])


def namesrv_option(
    name: str, help_text: str, *, default: str | None = None, other_source: str | None = None
) -> Callable[[Command], Command]:
    """Return the option -n as the parameter `name`; without -n, the addresses in the environment, else `default`.

    A command that gets the parameter `other_source`, such as a store directory, ignores the environment.
    """

    def without_environment(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
        # click converts the given parameters first.
        is_given = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        return value if is_given or other_source is None or not ctx.params.get(other_source) else default

    return click.option(
        "-n", "--namesrvAddr", name, type=ADDRESSES, metavar="HOST:PORT[;...]", help=help_text, default=default,
        show_default=default is not None, envvar=NAMESRV_VARIABLES, show_envvar=True, callback=without_environment,
    )  # fmt: skip


SINCE_HELP: Final = "Only messages stored at this time or later: 2013-01-01T05:15:00, milliseconds, or now."
