"""The command `rucola`, also as `python -m rucola`."""

import signal


def run() -> None:
    """Run the command line. Ctrl-C during the imports, which take most of the start, prints no traceback."""
    handler = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from rucola.cli.main import main

    signal.signal(signal.SIGINT, handler)
    main()


if __name__ == "__main__":
    run()
