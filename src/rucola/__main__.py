"""`python -m rucola`: the command line, for where no script is on the path."""

from rucola.cli.main import main

main()
