"""Command line: `python -m tvmnotes doctor | bench | tune | serve | tracker | write | check | ranges | …`."""

from pathlib import Path
from typing import Annotated

import typer

from tvmfast import commands
from tvmfast.core import data

app = typer.Typer(
    help="tvmnotes: a course on compiling neural networks with TVM.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.add_typer(commands.app)


def _networks():
    from . import models  # for speed: --help loads nothing

    return models


commands.find_networks = _networks  # its names, and pretrained weights


@app.command()
def write(
    prompt: Annotated[str, typer.Argument(help="The text to continue, such as 'def '.")],
    tokens: Annotated[int, typer.Option(min=0, help="How many tokens to write, at most.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0, help="0: the most probable token each time; 1: the model's probabilities.")
    ] = 0.8,
    seed: Annotated[
        int | None, typer.Option(help="For the draws; none: another text each time.", show_default=False)
    ] = None,
):
    """Continue a text with the small language model that writes Python, compiled for this machine."""
    from . import build, from_pytorch, generate, language, models  # for speed: --help loads nothing

    step = language.Step(models.load("tiny_lm"))
    lib = build(*from_pytorch(step, step.inputs), state=step.state)
    try:
        generate(lib, prompt, tokens, temperature, seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command()
def check(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Has a subfolder or notebook per student.")
    ],
    table: Annotated[
        Path | None,
        typer.Option(
            "--csv", dir_okay=False, callback=commands.writable, help="Write the verdicts to this file too."
        ),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run the notebooks, which runs the students' code on this machine.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=1, help="With --run, the limit for a notebook.")] = 600.0,
):
    """Say who passed which exercise: the stored outputs of tn.check in notebooks handed in.

    Nothing of a notebook runs without --run. A stored output is text that its student could have written.
    """
    from . import grades  # for speed: --help loads nothing

    if run:
        typer.secho(
            "--run runs the students' code with your rights: it can read, change and send your files. "
            "Run this in a container or as a user without files.",
            fg="red",
            err=True,
        )
    try:
        found = grades.read(folder, seconds if run else None)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    typer.echo(found)
    if table is not None:
        data.atomic_write(table, found.csv())


@app.command()
def ranges(
    folder: Annotated[
        Path | None,
        typer.Argument(
            exists=True, file_okay=False, help="Executed lessons; none: notebooks/.", show_default=False
        ),
    ] = None,
    lesson: Annotated[
        str | None, typer.Option(help="Only this lesson, such as 04.", show_default=False)
    ] = None,
    add: Annotated[bool, typer.Option("--add", help="Add these lessons' figures to the known ones.")] = False,
    name: Annotated[
        str | None, typer.Option(help="With --add: what to call the machine.", show_default=False)
    ] = None,
):
    """Compare the times and speeds in executed lessons with those of known machines."""
    from tools import ranges  # for speed: --help loads nothing

    from . import lessons  # for speed: --help loads nothing

    here = folder or lessons.ROOT / "notebooks"
    try:
        typer.echo(ranges.add(here, name, lesson) if add else ranges.compare(here, lesson))
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)
def classic(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="SCRIPT [ARGS]...", help="The script, and what it is given.")
    ],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module's name, as for python -m.")] = False,
):
    """Run a script written for Relay, AutoTVM or the graph executor, as `python SCRIPT` would."""
    from tvmclassic import runner  # for speed: --help loads nothing

    try:
        runner.run(name, context.args, as_module=module)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None


if __name__ == "__main__":
    app()
