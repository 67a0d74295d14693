"""`python -m gpupipe`."""

from gpupipe.cli.app import main

main()
