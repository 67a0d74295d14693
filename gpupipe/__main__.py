"""`python -m gpupipe`."""

from gpupipe.cli import main

main()
