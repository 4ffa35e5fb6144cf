"""The tests of this directory use the extension as the sources are now, whatever is installed."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from support import accelerator


@pytest.fixture(scope="session")
def extension(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModuleType | None:
    cache = getattr(request.config, "cache", None)  # `make sanitize` has none
    return accelerator.build(tmp_path_factory.mktemp("speed") if cache is None else cache.mkdir("accelerator"))


@pytest.fixture(autouse=True, scope="package")
def accelerated(extension: ModuleType | None) -> Iterator[None]:
    with accelerator.use(extension):
        yield
