"""Offline tools of `rucola store`, for a directory that no broker serves.

    check     every invariant of a directory            rebuild            queues and index again from the log
    stat      a directory in numbers                    parallel_rebuild   the same in pieces, for Spark
    dump      a directory as JSON lines                 repair             an intact copy of a damaged store
    grep      a search for messages                     salvage            the intact records of a damaged log

`placeholders` finds the lost queue offsets for `repair`.
"""
