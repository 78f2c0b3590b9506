"""The verbs of the command line. Each verb's flags are its config's fields; a verb's module is imported when it runs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer
from pydantic_core import PydanticUndefined

from cabrank.config import BaselineConfig, CacheConfig, Config, DemoConfig, DevicesConfig, SampleConfig, ShardConfig
from cabrank.errors import CabrankError

VERBS: dict[type[Config], str] = {
    DemoConfig: "cabrank.commands.demo",
    SampleConfig: "cabrank.commands.sample",
    ShardConfig: "cabrank.commands.shard",
    BaselineConfig: "cabrank.commands.baseline",
    DevicesConfig: "cabrank.commands.devices",
    CacheConfig: "cabrank.commands.cache",
}

app = typer.Typer(
    name="cabrank",
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
    if field.annotation is bool:
        kind: Any = Annotated[bool, typer.Option(help=field.description)]
    elif config.is_argument(name):
        kind = Annotated[str, typer.Argument(help=field.description, show_default=False)]
    else:
        option = typer.Option(f"--{name.replace('_', '-')}", help=field.description, metavar=_metavar(field.annotation))
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
    app.command(name=_config.verb)(_verb(_config, _module))


def main(argv: list[str] | None = None) -> None:
    """Runs the command line and exits with the code of `cabrank.errors`; 2 for wrong usage, 130 for Ctrl-C."""
    try:
        app(args=argv)
    except CabrankError as error:
        typer.echo(f"cabrank: {error}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        extra = {"torch": "train", "matplotlib": "train", "safetensors": "train", "moto": "local"}.get(error.name or "")
        if extra is None:
            raise
        typer.echo(f"cabrank: this verb needs {error.name}: pip install 'cabrank[{extra}]'", err=True)
        sys.exit(2)
    except Exception:  # what we did not raise on purpose is ours: the traceback, and the code that says so
        import traceback

        traceback.print_exc()
        sys.exit(CabrankError.exit_code)
