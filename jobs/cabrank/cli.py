"""The verbs of the command line. A verb's flags are its config's fields; its module is imported when it runs."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Literal, NoReturn, TextIO, TypeVar, get_args, get_origin

import typer
import typer.core
from pydantic_core import PydanticUndefined

from cabrank.config import (
    AuditConfig,
    BaselineConfig,
    CacheConfig,
    Config,
    DemoConfig,
    DevicesConfig,
    EngineerConfig,
    PlanConfig,
    SampleConfig,
    ShardConfig,
)
from cabrank.errors import CabrankError, ConfigError, StorageError

T = TypeVar("T")

VERBS: dict[type[Config], str] = {
    DemoConfig: "cabrank.commands.demo",
    SampleConfig: "cabrank.commands.sample",
    ShardConfig: "cabrank.commands.shard",
    PlanConfig: "cabrank.commands.plan",
    BaselineConfig: "cabrank.commands.baseline",
    DevicesConfig: "cabrank.commands.devices",
    CacheConfig: "cabrank.commands.cache",
    EngineerConfig: "cabrank.commands.engineer",
    AuditConfig: "cabrank.commands.audit",
}
GROUPS = {"features": "Makes features of columns, and asks whether they are worth learning from."}
"""First words of the verbs of two words, and what they are about."""

EXTRAS = {"matplotlib": "train", "moto": "local", "safetensors": "train", "torch": "train"}
"""Packages that a verb may find absent, and the extra of ours that brings each."""


class _Verbs(typer.core.TyperGroup):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-"):
            ctx.fail(f"there is no verb {args[0]!r}; there are: {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="cabrank",
    cls=_Verbs,
    rich_markup_mode=None,  # plain text: a boxed message breaks URIs apart, and logs are no terminal
    help="Train PyTorch models on part files in S3 or on disk that do not fit in memory, on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed_version

        typer.echo(f"cabrank {installed_version('cabrank')}")
        raise typer.Exit


def _parameter(config: type[Config], name: str) -> inspect.Parameter:
    """One config field as typer wants it. Types are checked by the config, so that flags and strings give one error."""
    field = config.model_fields[name]
    default = None if field.default is PydanticUndefined else field.default
    required = field.is_required()
    flag = config.flag(name)
    if field.annotation is bool:
        kind: Any = Annotated[bool, typer.Option(flag, help=field.description)]
    elif config.is_argument(name):
        kind = Annotated[str, typer.Argument(help=field.description, show_default=False)]
    else:
        option = typer.Option(flag, help=field.description, metavar=_metavar(field.annotation))
        kind = Annotated[str if required or default is not None else str | None, option]
        default = None if default is None else str(default)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=kind,
        default=inspect.Parameter.empty if required else default,
    )


def _metavar(annotation: Any) -> str:
    """What help shows in a value's place: a Literal's words, or what kind of value the type, `| None` or not, takes."""
    if get_origin(annotation) is Literal:
        return "|".join(map(str, get_args(annotation)))
    kinds = {annotation, *get_args(annotation)}
    kinds |= {get_args(kind)[0] for kind in kinds if get_origin(kind) is Annotated}
    return "INTEGER" if int in kinds else "NUMBER" if float in kinds else "TEXT"


def _verb(config: type[Config], module: str) -> Callable[..., None]:
    def run(**values: Any) -> None:
        checked = config.of({key: value for key, value in values.items() if value is not None})
        with _endings():
            import_module(module).run(checked)

    parameters = [_parameter(config, name) for name in config.model_fields]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__doc__ = config.__doc__
    return run


def _group(name: str) -> typer.Typer:
    group = typer.Typer(cls=_Verbs, rich_markup_mode=None, no_args_is_help=True)
    app.add_typer(group, name=name, help=GROUPS[name], short_help=GROUPS[name])
    return group


_groups = {name: _group(name) for name in GROUPS}
for _config, _module in VERBS.items():
    _first, _, _second = _config.verb.partition(" ")
    _command = _groups.get(_first, app).command(name=_second or _first, short_help=_config.__doc__)  # uncut in lists
    _command(_verb(_config, _module))


class _Ended(Exception):  # noqa: N818  (no error: a verb that was ended from outside)
    """Carries its exit code past typer, which would end KeyboardInterrupt and EPIPE in its own way."""

    def __init__(self, exit_code: int, line: str = "") -> None:
        super().__init__(line)
        self.exit_code = exit_code


class _Terminated(KeyboardInterrupt):
    """SIGTERM: what AWS Batch, SageMaker and `kill` send. Cleans up on its way out like Ctrl-C."""


@contextmanager
def _endings() -> Iterator[None]:
    """Ends the verb in the block as the shell's own tools end: 128 and the signal's number."""
    try:
        yield
    except KeyboardInterrupt as stop:
        by = signal.SIGTERM if isinstance(stop, _Terminated) else signal.SIGINT
        notes = getattr(stop, "__notes__", ())
        raise _Ended(128 + by, "; ".join((f"cabrank: stopped by {by.name}", *notes))) from stop
    except BrokenPipeError as error:
        raise _Ended(128 + signal.SIGPIPE) from error


@contextmanager
def _terminable() -> Iterator[None]:
    """In the block the first SIGTERM raises `_Terminated`, and more of them do not disturb the cleaning up."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def stop(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Output:
    """stdout, whose failures leave as `StorageError`, except EPIPE: that its reader has gone is no failure."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return 0 if text == "" else self._tried(lambda: self._stream.write(text))  # a full device refuses even nothing

    def flush(self) -> None:
        self._tried(self._stream.flush)

    def _tried(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # Python itself flushes once more, at exit
            if isinstance(error, BrokenPipeError):
                raise
            raise StorageError(f"standard output cannot be written: {error.strerror}; give it a place") from error


@contextmanager
def _output() -> Iterator[None]:
    """Streams that can be printed to, whatever the caller made of them, for the block."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: then Python has none
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  (as long as the process)
    given = sys.stdout
    sys.stdout = _Output(given)
    try:
        yield
    finally:
        sys.stdout = given


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with the code of `cabrank.errors`; 2 for wrong usage, 128 and the signal's number
    when it was stopped from outside: 130 Ctrl-C, 143 SIGTERM, 141 nobody reads its output any more."""
    with _output(), _terminable():
        logging.basicConfig(format="%(name)s: %(message)s")  # to stderr
        logging.getLogger("cabrank").setLevel(logging.INFO)
        code = _run(argv)
    sys.exit(code)


def _run(argv: list[str] | None) -> int:
    """The exit code; what is to be said about it is said."""
    try:
        try:
            app(args=argv, prog_name="cabrank")
        finally:
            sys.stdout.flush()
    except SystemExit as end:
        return int(end.code or 0)
    except _Ended as end:
        if str(end):
            typer.echo(end, err=True)
        return end.exit_code
    except CabrankError as error:
        typer.echo(f"cabrank: {error}", err=True)
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            typer.echo(f"cabrank: this verb needs {package}: pip install 'cabrank[{EXTRAS[package]}]'", err=True)
            return ConfigError.exit_code
        return _fault()
    except BrokenPipeError:
        return 128 + signal.SIGPIPE
    except Exception:  # noqa: BLE001
        return _fault()
    return 0


def _fault() -> int:
    """What we did not raise on purpose is ours: the traceback, and the code that says so."""
    import traceback

    traceback.print_exc()
    return CabrankError.exit_code
