"""The command line. Heavy imports are inside the commands, so that --help is fast."""

from __future__ import annotations

import io
import sys

from cdknet.cli import fits

# isort: split
from cdknet.cli import counting, embed, reproduce, review, sets
from cdknet.cli.base import InterruptedRun, app

# Modules that define commands. Those of `fits` come first in --help.
COMMANDS = (fits, counting, embed, reproduce, review, sets)


def main(argv: list[str] | None = None) -> int:
    """Run a command. An error that the user can fix is one line on stderr, with exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names need not be valid Unicode
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = app(args=argv, prog_name="cdknet", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except InterruptedRun as interrupt:
        _print_error(f"Interrupted. {interrupt}")
        return 130
    except (ValueError, OSError, TypeError, FloatingPointError, MemoryError, ImportError) as error:
        _print_error(str(error) or type(error).__name__)
        return 2
    except Exception as error:  # from the command-line parser: Ctrl-C, or a usage error
        if type(error).__name__ == "Abort":  # the parser makes it of Ctrl-C, and of the end of any file
            if isinstance(error.__cause__, EOFError):
                _print_error(f"A file must be complete. Got one that ends early: {error.__cause__}")
                return 2
            _print_error("Interrupted.")
            return 130
        if not hasattr(error, "format_message"):
            raise
        if message := error.format_message():  # empty if the help was shown instead
            path = getattr(getattr(error, "ctx", None), "command_path", "cdknet")
            message = message.rstrip(".")
            _print_error(f"{message}{'' if message.endswith('?') else '.'} Try: {path} --help")
        return 2


def _print_error(message: str) -> None:
    from cdknet.data.checks import printable

    sys.stderr.write("cdknet: " + printable(" ".join(message.split())) + "\n")
