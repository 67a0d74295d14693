"""Run the command line with `python -m gpupipe`."""

from gpupipe.cli.app import main

main()
