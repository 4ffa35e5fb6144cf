"""The storage engine: a record log, queues that point into it, and a key index.

The engine works on files only: it has no event loop, no socket and no clock. A broker drives `message_store`; a
program that only reads a directory uses `directory_reader`, which locks and writes nothing.

    message_store     put, get, query: the whole engine       recovery           opening after a stop or a crash
    commit_log        the records in order of arrival         checkpoint         the times up to which all is on disk
    consume_queue     per queue, where its records are        flusher            fsync, in the order that recovery needs
    index             per key, where its records are          write_state        whether puts are accepted
    mapped_file       the files that these consist of         replica            the log of a slave
    dispatch          from a record to its units and entries  retention          which files are deleted, and when
    dispatch_request  the fields that dispatch needs          archive_progress   the part of the log that is archived
    read_batch        the records of a get                    config             settings, and results of operations
    scan              reading a log without trusting it       config_files       config/*.json
    directory_reader  read-only access to a directory         directory_lock     one broker per directory
    pending           messages that are not dispatched yet    directory_entries  names of what a directory has
    tools/            the offline tools of `rucola store`

Nothing is imported here, so that Spark workers load only what they use.
"""

from rucola.system_calls import check_platform

check_platform()
