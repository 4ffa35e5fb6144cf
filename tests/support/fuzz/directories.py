"""Targets of the fuzzer that are directories: a store and a lake, of which one file is damaged at a time.

An input is the number of a file, one byte, and the new content of that file. A damaged store is checked, opened and
checked again: every step may report damage, and none may fail otherwise.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rucola.errors import MQError
from rucola.store.config import StoreConfig
from rucola.store.message_store import MessageStore
from rucola.store.tools.check import check
from rucola.store.tools.dump import dump_lines
from support.fuzz.loop import Target
from support.stores import inner

OUTSIDE = "outside"
"""A file in the directory of the lake that does not belong to it: no metadata may reach it."""
STORE_STALL_S = 1.0
"""CPU seconds for a store: check, recovery and dump of some files."""


def store_target(directory: Path) -> Target:
    """Return the target of a store directory, written here, with messages of three queues in two files of the log."""
    made, damaged = directory / "made", directory / "damaged"
    with MessageStore(_config(made)) as store:
        for number in range(24):
            store.put(inner(topic="T", queue_id=number % 3, body=bytes(number * 20), keys="k"), 1_700_000_000_000)
    (made / "config").mkdir(exist_ok=True)
    return _of_files("store", made, damaged, _use_store)


def lake_target(directory: Path) -> Target:
    """Return the target of the list of files of an earlier version. The files that it names do not exist."""
    made, damaged = directory / "made-lake", directory / "lake"
    metadata = made / "_rucola"
    metadata.mkdir(parents=True)
    bounds, last = '"size":9,"least":0,"most":9', '"last_physical_offset":0,"last_msg_id":"A"'
    row = f'{{"path":"topic=T/date=2024-01-01/a.parquet","topic":"T","date":"2024-01-01","rows":1,{bounds}}}'
    key = f'{{"path":"_rucola/keys/a.parquet","run":1,"entries":1,{bounds}}}'
    progress = f'{{"s":{{"physical_offset":9,{last},"queues":{{"T":{{"0":1}}}},"is_live":false}}}}'
    (metadata / "snapshot.json").write_text(f'{{"number":1,"rows":[{row}],"keys":[{key}],"progress":{progress}}}')
    (made / OUTSIDE).write_text("must stay")
    target = _of_files("lake", made, damaged, _use_lake)
    with suppress(MQError):
        target.run(target.seeds[0])  # loads pyiceberg, whose memory is no input's
    return target


def _of_files(name: str, made: Path, damaged: Path, use: Callable[[Path], None]) -> Target:
    files = sorted(path.relative_to(made) for path in made.rglob("*") if path.is_file() and path.name != OUTSIDE)

    def run(data: bytes) -> None:
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(made, damaged)
        (damaged / files[data[0] % len(files) if data else 0]).write_bytes(data[1:])
        use(damaged)

    seeds = [bytes([number]) + (made / file).read_bytes() for number, file in enumerate(files)]
    return Target(name, seeds, run, STORE_STALL_S)


def _config(path: Path) -> StoreConfig:
    return StoreConfig(
        store_path_root_dir=path,
        store_host=bytes([127, 0, 0, 1, 0, 0, 42, 159]),
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=20,
        max_index_num=60,
    )


def _use_store(path: Path) -> None:
    error: MQError | None = None
    for use in (check, lambda path: [*dump_lines(path)], _open):
        try:
            use(path)
        except MQError as found:
            error = found
    if error is not None:
        raise error


def _open(path: Path) -> None:
    """Open a store, read and write, and close it."""
    with MessageStore(_config(path)) as store:
        for queue_id in range(3):
            store.get("T", queue_id, 0, 32)
        store.query("T", "k", 32)
        store.put(inner(topic="T", body=b"after"), 1_700_000_001_000)
    check(path)


def _use_lake(path: Path) -> None:
    # Imported here: it takes longer than all parsers together.
    from rucola.spark.lake.tables import read_snapshot
    from rucola.spark.lake.writer import open_lake

    error: MQError | None = None
    try:
        read_snapshot(path)
    except MQError as found:
        error = found
    try:
        with open_lake(path):
            pass
    except MQError as found:
        error = found
    assert (path / OUTSIDE).read_text() == "must stay"
    if error is not None:
        raise error
