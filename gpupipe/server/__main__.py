"""python -m gpupipe.server: a server that reads its configuration from standard input.

ServerProcess starts it. On the command line use `gpupipe serve`.
"""

import sys

from gpupipe.server.start import run_child

sys.exit(run_child())
