"""Command line: `python -m tvmnotes write | check`; the engine's commands, with the course's networks."""

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


_ANY = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("classic", hidden=True, context_settings=_ANY)
def _classic():
    raise typer.BadParameter("it is now: python -m tvmclassic SCRIPT [ARGS]...")


@app.command("ranges", hidden=True, context_settings=_ANY)
def _ranges():
    raise typer.BadParameter("it is now, in a checkout: python -m tools.ranges [FOLDER]")


if __name__ == "__main__":
    app()
