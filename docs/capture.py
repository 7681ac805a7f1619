"""capture.py FILE.svg COMMAND…: run a command on a terminal and draw what it showed, as `make
capture` does.
"""  # noqa: INP001

import fcntl
import io
import os
import pty
import re
import shlex
import struct
import sys
import termios
from pathlib import Path

from rich.console import Console
from rich.text import Text

COLUMNS = 108
"""The width of the terminal: what a README's column shows without scaling the text away."""


def main() -> int:
    """Draw the run; the exit status is the command's."""
    target, command = Path(sys.argv[1]), sys.argv[2:]
    output, status = run(command)
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text.assemble(("$ ", "bold green"), (shlex.join(command), "bold")))
    console.print(Text.from_ansi(lasting(output)))
    svg = console.export_svg(title=shlex.join(command))
    # The font would come from a server; every terminal font will do.
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    target.write_text(
        "\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8"
    )
    return status


def run(command: list[str]) -> tuple[str, int]:
    """Run `command` on a terminal; return all that it wrote there and its exit status."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    written = b""
    try:
        while part := os.read(terminal, 65536):
            written += part
    except OSError:  # the last process has closed the terminal
        pass
    return written.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lasting(output: str) -> str:
    """Return what stands on the screen in the end: a line of progress that was taken away again
    does not.

    Of a terminal's language this knows what rich uses: carriage return, cursor up, erase line;
    colours are kept.
    """
    lines, row, returned = [""], 0, False
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", output):
        if part == "\n":
            row, returned = row + 1, False
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            returned = True
        elif part.startswith("\x1b"):
            if part[-1] == "A":
                row = max(0, row - int(part[2:-1] or 1))
            elif part[-1] == "K":
                lines[row] = ""
            elif part[-1] == "m":
                lines[row] += part
        else:
            lines[row] = part if returned else lines[row] + part
            returned = False
    return "\n".join(lines).strip("\n")


if __name__ == "__main__":
    sys.exit(main())
