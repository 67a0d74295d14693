import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios


def test_the_status_line_is_as_wide_as_the_terminal_of_stderr() -> None:
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 130, 0, 0))
        code = "from gpupipe.cli.serve import _show_in_place; _show_in_place('x' * 500)"
        subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.DEVNULL,
            stderr=theirs,
            check=True,
            timeout=600,
        )
        shown = os.read(ours, 4096).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown == "\r\x1b[K" + "x" * 126 + "..."
