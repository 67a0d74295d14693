"""python -m gpupipe.server: a server whose orders come over the standard input.

For people there is `gpupipe serve`.
"""

import sys

from gpupipe.server.start import child

sys.exit(child())
