"""The engine: a log of records, queues that point into it, an index over their keys.

A pure machine over files: no event loop, no socket, no clock of its own. A broker winds it (`message_store`);
whoever only reads a directory comes in through `reader`, which takes no lock and writes nothing.

    message_store   put, get, query: the whole engine            reader   the read-only door
    commit_log      records in order of arrival                  check    every invariant of a directory
    consume_queue   where the messages of one queue lie          dump     a directory as JSON lines
    index           where the messages with one key lie          config_files   config/*.json
    scan            reading a log that nobody vouches for        mapped_file    files in memory
    dispatch        from a record to its queue and keys          recovery       opening after a stop or a crash
    checkpoint      what is known to be on disk                      retention      which files go, and when
    archived        how far an archive has the log
    rebuild         queues and index anew from the log           stat     a directory in numbers
    repair          a sound copy of a damaged store              grep     a search for messages
    salvage         what of a damaged log can be kept            places   which places in queues are lost

Nothing is imported here, so that the reading side stays light in Spark's workers.
"""
