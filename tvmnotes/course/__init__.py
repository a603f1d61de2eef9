"""The course layer: networks, digits, images, plots, and the tools that lessons use.

asm         multiply-adds and the inner loop in a kernel's assembly
damage      damaged copies of a saved network
digits      ResNet-20 for handwritten digits, and its test images
exercises   exercises that check themselves: `check`, `hint`, `solution` and `progress`
generate    text from a compiled language model
grades      who passed which exercise, from notebooks that students handed in
language    a small language model, for whole sequences and token by token
lessons     the plan of the course, in README.md and notebook 00
models      networks by name, with pretrained or seeded weights
plots       the figures of the notebooks
processes   programs in the background, such as a tracker and servers
publish     a site, slides and a handout, made of the stored notebooks
ranges      what measured cells gave on known machines
scoreboard  the stored run of ResNet-18 in every runtime
show        TVM programs as highlighted TVMScript
sliders     sliders that call a function and show what it returns
threads     a network's time against TVM's threads, bound to cores or not
tokens      text as tokens, byte pairs
vision      ImageNet's preprocessing and top-k classes
"""

__all__ = ["check", "hint", "progress", "solution"]


def __getattr__(name: str):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import exercises  # for speed: the checks load torch and TVM

    return getattr(exercises, name)
