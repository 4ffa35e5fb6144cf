"""The distribution `rucola-mq`: its metadata, its page on a package index, and an installation from wheel and sdist.

The tests need no network: environments share the packages of this one.
"""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from packaging.metadata import Metadata
from packaging.version import Version
from trove_classifiers import classifiers

import rucola
from support.installation import REPOSITORY, build, module, run, share_packages

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
TUTORIALS = ["first-message", "rocketmq-5"]
"""Those that install Rucola."""
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
SEND_AND_RECEIVE = """
import sys
from pathlib import Path
import rucola
from rucola.client.sync import Message, Producer, PushConsumer

assert Path(rucola.__file__).is_relative_to(sys.prefix), rucola.__file__
with Producer("orders", sys.argv[1]) as producer:
    producer.send(Message("Orders", b"one pizza"))
consumer = PushConsumer("kitchen", sys.argv[1])
consumer.subscribe("Orders")
with consumer:
    for message in consumer:
        print(message.body.decode())
        consumer.ack(message)
        break
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist of this checkout."""
    return build(tmp_path_factory)


def metadata_of(wheel: Path, sdist: Path) -> tuple[bytes, bytes]:
    name = f"rucola_mq-{rucola.__version__}"
    with zipfile.ZipFile(wheel) as files, tarfile.open(sdist) as archive:
        packed = archive.extractfile(f"{name}/PKG-INFO")
        assert packed is not None
        return files.read(f"{name}.dist-info/METADATA"), packed.read()


@pytest.mark.slow
def test_metadata_is_valid_and_complete(built: tuple[Path, Path]) -> None:
    of_wheel, of_sdist = metadata_of(*built)
    assert of_wheel == of_sdist
    metadata = Metadata.from_email(of_wheel, validate=True)  # raises for what a package index would refuse
    assert metadata.name == "rucola-mq"
    assert metadata.version == Version(rucola.__version__)
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.license_files == ["LICENSE"]
    assert metadata.author == "The Rucola maintainers"
    assert metadata.summary
    assert "\n" not in metadata.summary
    assert len(metadata.keywords or []) >= 5
    assert set(metadata.classifiers or []) <= classifiers
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(metadata.provides_extra or []) == set(project["optional-dependencies"])
    # An extra that names another one, `rucola-mq[spark]`, is replaced by what that requires.
    assert [each.name for each in metadata.requires_dist or [] if each.name.startswith("rucola")] == []
    of_all = {each.name for each in metadata.requires_dist or [] if str(each.marker) == 'extra == "all"'}
    assert of_all >= {"pyspark", "sqlalchemy", "prometheus-client"}


@pytest.mark.slow
def test_an_index_would_accept_wheel_and_sdist(built: tuple[Path, Path]) -> None:
    """As `twine upload` would: metadata, and a page that renders, without warnings."""
    checked = run(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built)
    assert checked.count("PASSED") == 2


def test_classifiers_name_the_versions_that_are_tested() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    named = {each.rpartition(" ")[2] for each in project["classifiers"] if each.startswith(prefix)}
    assert named == {version for version in module(".ci/pythons.py").VERSIONS if not version.endswith("t")}
    assert project["requires-python"] == f">={min(named, key=Version)}"


@pytest.mark.slow
def test_the_package_page_is_the_readme_without_dead_links(built: tuple[Path, Path]) -> None:
    page = email.message_from_string(metadata_of(*built)[0].decode())
    assert page["Description-Content-Type"] == "text/markdown"
    text = page.get_payload()
    assert isinstance(text, str)
    html = MarkdownIt("commonmark").enable("table").render(text)
    assert "<h1>Rucola</h1>" in html
    links = re.findall(r'(?:href|src)="([^"]*)"', html)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []
    written = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", README)
    assert re.sub(r"\W", "", text) == re.sub(r"\W", "", re.sub(r"\]\((?!https:)[^)]*\)", "", written))


def test_links_of_the_package_page_lead_below_the_source() -> None:
    package_page = module("hatch_build.py").package_page
    text = "[a](docs/a.md), [b](https://b.example),\n![c](c.svg)\n[d](d.md#e), ![e](https://e.example)"
    assert package_page(text, "https://s.example/r") == (
        "[a](https://s.example/r/blob/HEAD/docs/a.md), [b](https://b.example),\n"
        "![c](https://s.example/r/raw/HEAD/c.svg)\n[d](https://s.example/r/blob/HEAD/d.md#e), ![e](https://e.example)"
    )
    assert package_page(text, None) == "a, [b](https://b.example),\nd, ![e](https://e.example)"


def test_pages_install_from_a_clone_until_a_project_url_says_that_there_are_releases() -> None:
    hatch_build = module("hatch_build.py")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    is_released = "Source" in project.get("urls", {})
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs" / "tutorials" / f"{name}.md" for name in TUTORIALS)]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        then = hatch_build.released(text)
        assert "pip install rucola-mq" in then, path
        assert not re.search(r"no release|pip install \.", then), path
        assert (then == text) == is_released, path
    assert "\nWith Python 3.11" in hatch_build.package_page(README, "https://s.example/r")
    assert hatch_build.package_page(README, None).count("pip install .") == 1


def test_every_relative_link_of_the_readme_is_a_file() -> None:
    targets = re.findall(r"\]\((?!https:)([^)#]+)", README)
    assert targets
    assert [target for target in targets if not (REPOSITORY / target).exists()] == []


@contextmanager
def standalone(command: Path, store: Path) -> Iterator[str]:
    """The address of the name server of a `rucola standalone`."""
    arguments = [command, "standalone", "--store", store, "--namesrv-port", "0", "--broker-port", "0"]
    process = subprocess.Popen([*map(str, arguments)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout as stdout:
        try:
            line = stdout.readline()
            assert line.startswith("rucola ready namesrv=127.0.0.1:"), line
            yield line.split()[2].partition("=")[2]
        finally:
            process.terminate()
    assert process.returncode == 0


def commit_in(wheel: Path) -> str:
    """The commit that a wheel has recorded."""
    with zipfile.ZipFile(wheel) as files:
        return files.read("rucola/_commit").decode() if "rucola/_commit" in files.namelist() else ""


@pytest.mark.slow
def test_a_wheel_names_the_commit_of_its_checkout(built: tuple[Path, Path]) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True)
    if head.returncode:
        pytest.skip(f"no git checkout: {head.stderr.strip()}")
    assert commit_in(built[0]).removesuffix("-dirty") == head.stdout[:12]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_an_installation_sends_and_receives(built: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    environment = tmp_path / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin" / "python"
    share_packages(environment)
    package = built[0 if kind == "wheel" else 1]
    run(*PIP, "--python", python, "install", "--no-index", "--no-deps", "--no-build-isolation", package)
    # As the errors of missing extras say, without an index: pip takes the installed one.
    assert "rucola-mq" not in run(*PIP, "--python", python, "install", "--no-index", "--quiet", "rucola-mq[testing]")
    version = run(python, "-c", "from importlib.metadata import version; print(version('rucola-mq'))")
    assert version == f"{rucola.__version__}\n"
    command = environment / "bin" / "rucola"
    shown = f"{rucola.__version__}+{commit_in(built[0]).replace('-', '.')}".rstrip("+")
    of_this = shown if kind == "wheel" else rucola.__version__  # an sdist has no checkout
    assert run(command, "--version") == f"rucola, version {of_this}, accelerated\n"
    with standalone(command, tmp_path / "store") as namesrv:
        assert run(python, "-c", SEND_AND_RECEIVE, namesrv) == "one pizza\n"


def test_documents_and_errors_name_the_distribution() -> None:
    """`pip install rucola` would install a package of other people."""
    pages = [REPOSITORY / "README.md", REPOSITORY / "pyproject.toml", *(REPOSITORY / "docs").glob("*.md")]
    wrong = re.compile(r"""rucola\[|install ['"`]?rucola\b(?!-mq)""")
    for path in [*pages, *(REPOSITORY / "src").rglob("*.py"), *(REPOSITORY / "examples").rglob("*")]:
        if path.is_file() and path.suffix != ".pyc":
            assert not wrong.search(path.read_text(encoding="utf-8")), path
