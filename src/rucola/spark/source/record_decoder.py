"""Decoder of records, of a log or of pulls: locates, verifies, selects and decodes them, and handles damage."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rucola.errors import MQError
from rucola.message import properties, sysflag
from rucola.message.record import Buffer
from rucola.spark.source import columns, record_layout
from rucola.spark.source.array_conversions import Array
from rucola.spark.source.option_values import sql92_matcher
from rucola.spark.source.options import CorruptRecords, ReadOptions
from rucola.spark.source.record_layout import DamagedRecord, Records
from rucola.spark.source.source_offsets import is_chosen_topic

_log = logging.getLogger(__name__)


class RecordDecoder:
    """Decoder for one task: the columns `names` of the chosen messages at `place`, which warnings name.

    With `whole_log`, records are of all queues, and of half messages.
    """

    def __init__(
        self, chosen: ReadOptions, names: Sequence[str], broker_name: str, place: str, *, whole_log: bool
    ) -> None:
        self._chosen = chosen
        self._names = names
        self._broker_name = broker_name
        self._place = place
        self._whole_log = whole_log
        self._omitted: list[MQError] = []
        self._omitted_count = 0
        self._damaged: list[DamagedRecord] = []

    def decode(
        self,
        log: Buffer,
        log_offset: int | None,
        positions: Array,
        sizes: Array,
        verify: Callable[[Records], tuple[Records, list[DamagedRecord]]],
        error: Callable[[DamagedRecord], MQError],
    ) -> Iterator[pa.RecordBatch]:
        """Yield the chosen messages among records expected in a buffer (see `record_layout.locate`).

        `verify` returns the records that are right, and the others. With corruptRecords=fail, a damaged record raises
        its `error`.
        """
        for cut in record_layout.batches(positions, sizes):
            records, damaged = record_layout.locate(log, log_offset, positions[cut], sizes[cut])
            records, others = verify(records)
            self.report([*damaged, *others], error)
            # Select by the options, before anything but the fixed part is decoded if possible.
            records = records.where(_selection_mask(records, self._chosen, whole_log=self._whole_log))
            for batch, damaged in columns.decode(records, self._names, broker_name=self._broker_name):
                self.report(damaged, error)
                if batch.num_rows:
                    yield batch
            yield from self._damaged_rows(with_offsets=log_offset is not None)

    def report(self, damaged: Sequence[DamagedRecord], error: Callable[[DamagedRecord], MQError]) -> None:
        """Raise the error of a damaged record, count it, or keep it as a row, as corruptRecords says."""
        if not damaged:
            return
        match self._chosen.corrupt_records:
            case CorruptRecords.FAIL:
                raise error(damaged[0])
            case CorruptRecords.COLUMN:
                self._damaged += damaged
            case CorruptRecords.SKIP:
                self._omitted_count += len(damaged)
                self._omitted = self._omitted or [error(damaged[0])]

    def close(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of damage that are left, and warn of omitted records."""
        yield from self._damaged_rows(with_offsets=True)
        for first in self._omitted:
            _log.warning("left out %d damaged records of %s; the first: %s", self._omitted_count, self._place, first)

    def _damaged_rows(self, *, with_offsets: bool) -> Iterator[pa.RecordBatch]:
        if self._damaged:
            rows, self._damaged = self._damaged, []
            yield columns.corrupt_rows(rows, self._names, broker_name=self._broker_name, with_offsets=with_offsets)


def _selection_mask(records: Records, chosen: ReadOptions, *, whole_log: bool) -> Array:
    """Return a mask of the records that the options select, by cheap conditions first and SQL92 last."""
    stored = records.heads["store_timestamp"]
    found = np.ones(len(records), np.bool_)
    if chosen.starting_timestamp is not None or chosen.ending_timestamp is not None:
        found &= columns.is_time(stored)
    if chosen.starting_timestamp is not None:
        found &= stored >= chosen.starting_timestamp
    if chosen.ending_timestamp is not None:
        found &= stored < chosen.ending_timestamp
    if whole_log:
        found &= _queue_mask(records, chosen)
    if chosen.tags is not None and len(records):
        tags = records.properties.values_of(properties.TAGS)
        found &= pc.is_in(tags, pa.array(sorted(chosen.tags), pa.string())).to_numpy(zero_copy_only=False)
    if chosen.keys is not None and len(records):
        found &= _key_mask(records, chosen.keys)
    if chosen.expression is not None and found.any():
        matches = sql92_matcher(chosen.expression)
        maps = records.where(found).properties.as_map().to_pylist(maps_as_pydicts="strict")
        found[found] = [matches(each) for each in maps]
    return found


def _queue_mask(records: Records, chosen: ReadOptions) -> Array:
    queues = chosen.queue_filter
    # Topics are compared once per distinct topic.
    names = records.topics.dictionary.to_pylist()
    is_left = [queues.topics is None or name in queues.topics for name in names]
    topics = np.array([is_chosen_topic(chosen, name) for name in names], np.bool_) & np.array(is_left, np.bool_)
    found: Array = topics[records.topic_codes]
    offsets = records.heads["queue_offset"]
    found &= (offsets >= queues.begin_queue_offset) & (offsets < queues.end_queue_offset)
    if queues.queue_ids is not None:
        found &= np.isin(records.heads["queue_id"], list(queues.queue_ids))
    # Half messages get no ConsumeQueue unit in their topic, so no consumer ever sees them.
    found &= (records.heads["sys_flag"] & sysflag.TRANSACTION_PREPARED) == 0
    return found


def _key_mask(records: Records, keys: frozenset[str]) -> Array:
    wanted = pa.array(sorted(keys), pa.string())
    unique = records.properties.values_of(properties.UNIQ_KEY)
    found: Array = pc.is_in(unique, wanted).to_numpy(zero_copy_only=False).copy()
    # Keys [a b] [] [c] are a b c in one array, with parents 0 0 2: a hit of c selects row 2.
    lists = records.keys()
    hits = pc.is_in(lists.flatten(), wanted).to_numpy(zero_copy_only=False)
    found[pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)[hits]] = True
    return found
