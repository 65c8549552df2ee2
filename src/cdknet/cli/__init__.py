"""The command line. Heavy imports wait inside the commands, so that --help answers at once."""

from __future__ import annotations

import io
import sys

from cdknet.cli import fits, reproduce, review, sets
from cdknet.cli.base import InterruptedRun, app

COMMANDS = (fits, reproduce, review, sets)  # each makes its own; --help lists them in this order


def main(argv: list[str] | None = None) -> int:
    """Run a command. What is the user's to mend is said in one line, with exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be text
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(args=argv, prog_name="cdknet", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except InterruptedRun as interrupt:
        _complain(f"Interrupted. {interrupt}")
        return 130
    except (ValueError, OSError, TypeError, FloatingPointError, MemoryError, ImportError) as error:
        _complain(str(error) or type(error).__name__)
        return 2
    except Exception as error:  # what the command-line parser raises: Ctrl-C, or a usage error
        if type(error).__name__ == "Abort":
            _complain("Interrupted.")
            return 130
        if not hasattr(error, "format_message"):
            raise
        if message := error.format_message():  # none where the help was shown instead
            path = getattr(getattr(error, "ctx", None), "command_path", "cdknet")
            message = message.rstrip(".")
            _complain(f"{message}{'' if message.endswith('?') else '.'} Try: {path} --help")
        return 2


def _complain(message: str) -> None:
    sys.stderr.write("cdknet: " + " ".join(message.split()) + "\n")
