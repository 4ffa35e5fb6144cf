"""The accelerator, built from the sources of this checkout, and its functions turned off for comparison."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from rucola import speed
from rucola.errors import MQError
from support.installation import REPOSITORY, module

FUNCTIONS = sorted(name for name, kind in speed.__annotations__.items() if str(kind).startswith("Callable"))
"""What `rucola.speed` offers."""


def build(folder: Path) -> ModuleType | None:
    """Compile and load the extension; None on a machine without a C compiler or headers.

    SPEED_FLAGS has more flags for the compiler; `make sanitize` sets it. One that was built in `folder` from the same
    sources, with the same flags, is loaded again.
    """
    flags = os.environ.get("SPEED_FLAGS", "").split()
    sources = [path.read_bytes() for path in (REPOSITORY / "hatch_build.py", *sorted((REPOSITORY / "speed").iterdir()))]
    key = hashlib.sha256(b"\0".join([*sources, repr((flags, os.environ.get("CC"), sys.version)).encode()])).hexdigest()
    if (target := folder / key[:16] / "_speed.abi3.so").exists():
        return _load(target)
    # Compiled under a name of its own, since another worker may do the same.
    with TemporaryDirectory(dir=folder) as own:
        compiled = Path(own, target.name)
        reason: str = module("hatch_build.py").build_accelerator(REPOSITORY, compiled, flags)
        if reason:
            assert reason.startswith(("there is no C compiler", "Python's headers are missing")), reason
            return None
        target.parent.mkdir(exist_ok=True)
        compiled.replace(target)
    return _load(target)


def _load(path: Path) -> ModuleType:
    loader = ExtensionFileLoader("rucola._speed", str(path))
    spec = spec_from_file_location("rucola._speed", path, loader=loader)
    assert spec is not None
    built = module_from_spec(spec)
    loader.exec_module(built)
    return built


@contextmanager
def use(extension: ModuleType | None) -> Iterator[None]:
    """Let everything use an extension, None for pure Python."""
    before = {name: getattr(speed, name) for name in FUNCTIONS}
    for name in FUNCTIONS:
        setattr(speed, name, getattr(extension, name, None))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(speed, name, function)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or the type and text of the error that it raises."""
    try:
        return call()
    except (MQError, ValueError, OverflowError, struct.error) as error:
        return type(error), str(error)


def assert_same(call: Callable[[], Any]) -> Any:
    """Return the outcome of a call, which must be the same with the accelerator and without."""
    accelerated = outcome(call)
    with use(None):
        reference = outcome(call)
    assert accelerated == reference
    return reference
