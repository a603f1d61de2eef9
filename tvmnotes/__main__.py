"""The command line: `python -m tvmnotes doctor | bench`."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="tvmnotes: a course on compiling neural networks with TVM.", no_args_is_help=True,
                  add_completion=False, pretty_exceptions_show_locals=False)  # fmt: skip


@app.command()
def doctor():
    """Show what this machine is, and check that TVM compiles and runs here. Exits with 1 where something is off."""
    from . import env

    typer.echo(env.report())
    problems = env.problems()
    for problem in problems:
        typer.secho(f"\nproblem: {problem}", fg="red", err=True)
    if problems:
        raise typer.Exit(1)
    typer.echo("\nAll is well: the pinned versions are there, and a kernel compiles and runs.")


@app.command()
def bench(
    networks: Annotated[list[str] | None, typer.Argument(help="Names that tn.models.load knows.")] = None,
    against: Annotated[
        str, typer.Option(help="Of pytorch, compile and onnxruntime, with commas.")
    ] = "pytorch,onnxruntime",
    threads: Annotated[int, typer.Option(help="Threads of each; 0: the usable cores.")] = 0,
    seconds: Annotated[float, typer.Option(help="Timed seconds for each.")] = 2.0,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file too.")] = None,
):
    """Time networks in TVM and in other runtimes: one run, in turns, medians, ratios and the largest difference."""
    if threads > 0:
        os.environ["TVM_NUM_THREADS"] = str(threads)
    from . import benchmark

    try:
        results = benchmark.run(networks or ["resnet18"], against.split(","), seconds, typer.echo)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if out is not None:
        part = out.with_name(f".{out.name}-{os.getpid()}")
        part.write_text(json.dumps(results, indent=1))
        part.replace(out)


if __name__ == "__main__":
    app()
