"""Sliders below a cell: moved, they call a function with their values and show the text that it returns."""

import os
from collections.abc import Callable, Iterable

from tvmfast.core.errors import one_line


def show(measure: Callable[..., str], **choices: Iterable) -> None:
    """Show a slider for each choice and, below them, what `measure` returns for their values.

    Nothing is shown if TQDM_DISABLE is set, as it is where notebooks are stored: a stored slider cannot be
    moved.

    Args:
        measure: A function of the choices, by name, which returns a line of text.
        **choices: The values of each slider, by its name.
    """
    if "TQDM_DISABLE" in os.environ:
        return
    import ipywidgets  # for speed: only where sliders are shown
    from IPython.display import display  # for speed

    line = ipywidgets.Label()
    sliders = {}
    for name, values in choices.items():
        sliders[name] = ipywidgets.SelectionSlider(
            options=list(values), description=name, continuous_update=False
        )

    def update(_=None) -> None:
        line.value = "measuring …"
        try:
            line.value = measure(**{name: slider.value for name, slider in sliders.items()})
        except Exception as error:  # it would go to a log that nobody sees
            line.value = f"{type(error).__name__}: {one_line(error)}"

    for slider in sliders.values():
        slider.observe(update, names="value")
    update()
    display(ipywidgets.VBox([*sliders.values(), line]))
