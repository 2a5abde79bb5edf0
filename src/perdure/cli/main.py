"""The `perdure` command: puts the groups together, and turns errors into one line and an exit code.

0 yes    1 no (failed, diverged, someone is waited for)    2 usage    3 not found    4 store unreachable
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from perdure import phrases
from perdure.cli import answering, checking, demonstrating, importing, looking, running, screen
from perdure.errors import BadInput, NotFound, PerdureError, StoreError
from perdure.version import __version__

OK: Final = 0
NO: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
UNREACHABLE: Final = 4

_NEGATIVE: Final = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_TAKES_TEXT: Final = ("run", "answer")


class Command(TyperCommand):
    """A command that takes negative numbers as arguments, and whose JSON is alone on standard output."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # As below.
        """Read its words. What begins with a dash and is neither an option nor a number is refused."""
        positive = [word[1:] if _NEGATIVE.fullmatch(word) else word for word in args]
        if positive != args:
            self.make_parser(ctx).parse_args(positive)  # Raises NoSuchOption for any other unknown option.
            ctx.ignore_unknown_options = True
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]  # Typer hands out its own contexts.
        """Do what it does."""
        with screen.json_alone() if ctx.params.get("as_json") else nullcontext():
            return super().invoke(ctx)


class Commands(TyperGroup):
    """The group of all commands. An error of perdure's own never shows a traceback; a bug does."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  # Typer's own signature.
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002
        **extra: Any,
    ) -> Any:
        """Run one command line; exits with its code, or returns it."""
        code = self._run(args, prog_name, complete_var, windows_expand_args=windows_expand_args, **extra)
        if standalone_mode:
            sys.exit(code)
        return code

    def _run(self, args: Sequence[str] | None, prog_name: str | None, complete_var: str | None, **extra: Any) -> int:
        screen.open_closed()
        try:
            code = super().main(args, prog_name or "perdure", complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever read our output has seen enough, as in `perdure ps | head`.
            screen.give_up()
            return NO
        except OSError as error:
            if not _is_of_output(error):
                raise
            screen.give_up()
            return _complain(f"cannot print: {error.strerror}", NO)
        except TyperException as error:
            dash = "; write -- before an argument that begins with a dash" if _may_be_text(error) else ""
            return _complain(f"{error.format_message()}{dash} (--help tells more)", USAGE)
        except typer.Abort:
            return _complain("stopped", NO)
        except PerdureError as error:
            return _complain(str(error), exit_code(error))
        return code if isinstance(code, int) else OK


app = typer.Typer(
    name="perdure",
    cls=Commands,
    rich_markup_mode=None,  # Help is plain text: no boxes, in a terminal as in a pipe.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001  # Typer's own signature.
    if wanted:
        screen.put(f"perdure {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def perdure(
    context: typer.Context,
    *,
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Durable state and recovery for multi-agent systems.

    Exit codes: 0 yes, 1 no (failed, or someone is waited for), 2 usage, 3 not found, 4 store unreachable.
    """
    if context.invoked_subcommand is None:
        screen.note(context.get_help())
        raise typer.Exit(USAGE)


for group in (running, looking, answering, importing, checking, demonstrating):
    group.add_to(app)
for command in app.registered_commands:
    command.cls = Command


def main(args: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    code = typer.main.get_command(app).main(args, prog_name="perdure", standalone_mode=False)
    return code if isinstance(code, int) else OK


def exit_code(error: PerdureError) -> int:
    """The exit code that tells a script what kind of error it was."""
    match error:
        case StoreError():
            return UNREACHABLE
        case NotFound():
            return NOT_FOUND
        case BadInput():
            return USAGE
        case _:
            return NO


def _may_be_text(error: TyperException) -> bool:
    """Whether what was no option may have been meant as an argument."""
    context = getattr(error, "ctx", None)
    return context is not None and context.command.name in _TAKES_TEXT and hasattr(error, "option_name")


def _is_of_output(error: OSError) -> bool:
    """Whether it was met by code that prints, which does nothing else with files: the disk is full, say."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith((f"{__package__}.", "typer.", "rich."))


def _complain(text: str, code: int) -> int:
    with suppress(OSError):  # Standard error may lead to the same full disk.
        sys.stderr.write(f"perdure: {phrases.safe(phrases.one_line(text, limit=4000))}\n")
    return code
