"""The interpreter of a server: what is frozen, what is collected all the same, and the end of it."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from rucola.cli.interpreter import SWITCH_INTERVAL_S, FrozenObjects, tuned_for_serving


class Node:
    """An object that refers to itself, as asyncio's transports do."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def frozen() -> Iterator[FrozenObjects]:
    before = gc.get_threshold(), sys.getswitchinterval()
    with tuned_for_serving() as frozen:
        assert sys.getswitchinterval() == SWITCH_INTERVAL_S
        yield frozen
    assert (gc.get_threshold(), sys.getswitchinterval()) == before
    assert gc.get_freeze_count() == 0


def test_no_full_collection_scans_an_object_twice(frozen: FrozenObjects) -> None:
    survivors = [Node() for _ in range(1000)]
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() >= before + len(survivors)
    old = gc.get_objects(generation=2)
    assert not any(isinstance(each, Node) for each in old)


def test_garbage_is_collected_before_anything_is_frozen(frozen: FrozenObjects) -> None:
    gone = weakref.ref(Node())
    gc.collect()
    assert gone() is None


def test_a_frozen_object_without_a_cycle_is_freed_at_once(frozen: FrozenObjects) -> None:
    node = Node()
    gc.collect()
    gone = weakref.ref(node)
    node.itself = None  # type: ignore[assignment]
    del node
    assert gone() is None


@pytest.mark.slow
def test_frozen_cycles_are_collected_when_frozen_objects_have_doubled(frozen: FrozenObjects) -> None:
    assert not frozen.collect_if_doubled()
    nodes = [Node() for _ in range(gc.get_freeze_count() + 1000)]
    gc.collect()
    gone = weakref.ref(nodes[0])
    nodes.clear()
    gc.collect()
    assert gone() is not None, "frozen"
    assert frozen.collect_if_doubled()
    assert gone() is None
    assert not frozen.collect_if_doubled(), "counted anew"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators cannot be told to keep memory")
def test_freed_memory_is_kept() -> None:
    """Its pages are not made anew for the next buffer of megabytes."""
    program = """
import resource
from rucola.cli.interpreter import tuned_for_serving

def faults_of_buffers():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        buffers = [bytearray(4 << 20) for _ in range(3)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with tuned_for_serving():
    faults_of_buffers()
    print(faults_of_buffers())
"""
    made = int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
    assert made < 1000, "30 buffers have 30,000 pages of 4 KB"
