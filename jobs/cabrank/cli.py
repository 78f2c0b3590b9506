"""The verbs of the command line. A verb's flags are its config's fields; its module is imported when it runs."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.core
from pydantic_core import PydanticUndefined

from cabrank.config import (
    BaselineConfig,
    CacheConfig,
    Config,
    DemoConfig,
    DevicesConfig,
    PlanConfig,
    SampleConfig,
    ShardConfig,
)
from cabrank.errors import CabrankError, ConfigError

VERBS: dict[type[Config], str] = {
    DemoConfig: "cabrank.commands.demo",
    SampleConfig: "cabrank.commands.sample",
    ShardConfig: "cabrank.commands.shard",
    PlanConfig: "cabrank.commands.plan",
    BaselineConfig: "cabrank.commands.baseline",
    DevicesConfig: "cabrank.commands.devices",
    CacheConfig: "cabrank.commands.cache",
}

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
    help="Train PyTorch models on part files in S3, on AWS Batch or SageMaker, and on this machine first.",
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
    text = str(annotation)
    for mark, shown in (("Literal", ""), ("int", "INTEGER"), ("float", "NUMBER")):
        if mark in text:
            return shown or "|".join(str(a) for a in annotation.__args__)
    return "TEXT"


def _verb(config: type[Config], module: str) -> Callable[..., None]:
    def run(**values: Any) -> None:
        checked = config.of({key: value for key, value in values.items() if value is not None})
        import_module(module).run(checked)

    parameters = [_parameter(config, name) for name in config.model_fields]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__doc__ = config.__doc__
    return run


for _config, _module in VERBS.items():
    app.command(name=_config.verb, short_help=_config.__doc__)(_verb(_config, _module))  # uncut in the list of verbs


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with the code of `cabrank.errors`; 2 for wrong usage, 130 for Ctrl-C."""
    logging.basicConfig(format="%(name)s: %(message)s")  # to stderr
    logging.getLogger("cabrank").setLevel(logging.INFO)
    try:
        app(args=argv, prog_name="cabrank")
    except CabrankError as error:
        typer.echo(f"cabrank: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise _fault() from error
        typer.echo(f"cabrank: this verb needs {package}: pip install 'cabrank[{EXTRAS[package]}]'", err=True)
        sys.exit(ConfigError.exit_code)
    except Exception as error:
        raise _fault() from error


def _fault() -> SystemExit:
    """What we did not raise on purpose is ours: the traceback, and the code that says so."""
    import traceback

    traceback.print_exc()
    return SystemExit(CabrankError.exit_code)
