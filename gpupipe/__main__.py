"""Runs the command line: the command `gpupipe`, or `python -m gpupipe`."""

import io
import signal
import sys

if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
    sys.stdout.reconfigure(errors="replace")  # a pipe of Windows has no ≤, for one
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C ends the process. A KeyboardInterrupt may be lost: see `exit_if_interrupt_is_lost`.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpupipe.cli.app import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
else:
    from gpupipe.cli.app import main

if __name__ == "__main__":
    main()
