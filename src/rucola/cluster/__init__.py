"""A cluster on one machine: its layout, and a supervisor that runs its servers.

    layout        which servers there are, with their configuration files and ports
    server        one server as a child process: start, readiness, log, stop
    supervisor    starts all servers in order, restarts those that end, stops them in order

`rucola cluster` (`cli.cluster`) runs it; `cli.supervised` is the entry point of the child processes.
"""
