"""The job reconcile with a number of stubs and with ten times as many: CPU time per stub.

The tables are an SQLite file, the log is a store of the same messages. Of a hundred stubs, one was never stored, nine
are SENT and the others CONFIRMED with an effect. CPU time is that of all processes: Java, its Python workers and this
one. The first run, on a tenth of the smaller number, warms up and is not counted.

With `--full` there are 1 and 10 million stubs, which take some 8 GB of disk, and the aim is that CPU time per stub does
not grow. With fewer, the fixed cost of a run in Spark dominates, and there is no aim.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from figures import Aim, Figure
from floors import Options
from processes import Spent, adopt_orphans, cpu_s
from rucola.reliable import Tables, migration
from rucola.reliable.database import Database
from rucola.spark.jobs import reconcile
from rucola.spark.jobs.reconciled_log import LogSources
from rucola.spark.jobs.table_export import TableSource
from rucola.spark.session import local_session
from written import BEGIN_MS, position_of, write

TOPIC = "BenchReconcile"
BROKER = "broker-a"
RECORD_SIZE = 300
FULL_COUNT = 1_000_000
COUNT = 20_000
TIMES = 10
MOST_GROWTH = 1.1
_ABSENT, _SENT = 1, 10
"""Of a hundred stubs, those below the first number are absent from the log, those below the second are SENT."""


def measure(options: Options) -> list[Figure]:
    """Reconcile both numbers of stubs, and compare the CPU time per stub."""
    count = FULL_COUNT if options.is_full else options.count(COUNT)
    session = local_session("rucola-bench")
    adopt_orphans()
    spent: dict[int, Spent] = {}
    try:
        for number in (count // 10, count, count * TIMES):
            with TemporaryDirectory(prefix="rucola-bench-") as name:
                folder = Path(name)
                source = _tables(folder / "shop.db", number)
                write(folder / "store", TOPIC, RECORD_SIZE, number, key_of=_stored_id)
                begin, cpu = time.perf_counter(), cpu_s()
                log = LogSources({BROKER: folder / "store"})
                found = reconcile.run(session, source, log, folder / "out")
                spent[number] = Spent(time.perf_counter() - begin, cpu_s() - cpu)
                if found.count("never_stored") != number // 100:
                    raise RuntimeError(f"{number // 100} messages are lost, {found.count('never_stored')} were found")
    finally:
        session.stop()
    least, most = spent[count], spent[count * TIMES]
    return [
        Figure(
            f"reconcile_of_{count * TIMES}_stubs_CPU_a_stub",
            most.cpu_s / count / TIMES * 1e6,
            "us",
            floor=least.cpu_s / count * 1e6,
            floor_is=f"reconcile of {count} stubs",
            aims=[Aim("ratio", MOST_GROWTH)] if options.is_full else [],
            more={
                f"{kind}_at_{number}_stubs": getattr(each, kind)
                for number, each in spent.items()
                for kind in ("wall_s", "cpu_s")
            },
        )
    ]


def _id(number: int) -> str:
    return f"{number:032X}"


def _stored_id(number: int) -> str:
    """Return the unique key of a message of the store: not the stub's, if that one is lost."""
    return _id(number) if number % 100 >= _ABSENT else f"F{number:031X}"


def _tables(path: Path, count: int) -> TableSource:
    """Create and fill the tables."""
    url = f"sqlite:///{path}"
    tables = Tables()
    Database(url).run_sync(migration.init, tables)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA synchronous=OFF")
        names = (
            "message_id, topic, properties, body, lane, status, awaiting, sends, broker, queue_id, queue_offset, "
            "due_at, created_at, confirmed_at"
        )
        places = ", ".join("?" * len(names.split(",")))
        connection.executemany(f"INSERT INTO {tables.stub.name} ({names}) VALUES ({places})", _stubs(count))
        done = ((_id(number), "billing", BEGIN_MS) for number in range(count) if number % 100 >= _SENT)
        connection.executemany(f"INSERT INTO {tables.done.name} VALUES (?, ?, ?)", done)
    connection.close()
    return TableSource(url)


def _stubs(count: int) -> Iterator[tuple[object, ...]]:
    for number in range(count):
        is_sent = number % 100 < _SENT
        state = ("SENT", ",billing,") if is_sent else ("CONFIRMED", ",")
        times = (BEGIN_MS, BEGIN_MS, None) if is_sent else (None, BEGIN_MS, BEGIN_MS)
        yield (_id(number), TOPIC, "{}", b"", 0, *state, 1, BROKER, *position_of(number), *times)
