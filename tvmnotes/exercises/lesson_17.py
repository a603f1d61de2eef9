"""Exercises of lesson 17: blocks of a batch, convolutions to merge, and some that must not be merged."""

from .exercise import exercise, require, require_keys


@exercise(
    "17.1",
    "A block computes a tile of 32 pixels by 32 channels. A tile that is only partly full is a block too.",
    "Round both quotients up, and multiply: ceil(pictures * pixels / 32) * ceil(channels / 32). Below 256, "
    "do it again with tiles of 8 pixels.",
    minutes=15,
    difficulty=2,
)
def blocks(answer):
    """The blocks of a convolution as a matrix product."""
    cases = {(1, 49, 512): 112, (8, 196, 256): 392, (8, 49, 512): 784, (3, 49, 100): 76}
    for (pictures, pixels, channels), wanted in cases.items():
        got = answer(pictures, pixels, channels)
        what = f"the blocks for {pictures} pictures of {pixels} pixels and {channels} channels"
        do = "The pixels of all pictures are one axis, which is cut into tiles of 32, or of 8; round up once."
        require(got == wanted, what, wanted, got, do)


@exercise(
    "17.2",
    'Count "nn.conv2d" among the operators before and after combine_parallel_ops().',
    "Two convolutions merge only if they read the same value with windows, strides and padding alike.",
    minutes=15,
    difficulty=2,
)
def merged(answer):
    """The convolutions of three networks after the merge."""
    before = {"squeezenet1_1": 26, "inception_v3": 94, "resnet50": 53}
    after = {"squeezenet1_1": 26, "inception_v3": 75, "resnet50": 52}
    require_keys(answer, tuple(before), "Return a dictionary with a number for each network.")
    for name, wanted in after.items():
        got = int(answer[name])
        do = "Fold first (combine_parallel.prepared), then merge, and count again."
        require(got <= before[name], f"the convolutions of {name}", f"{before[name]} or fewer", got, do)
        require(
            got == wanted,
            f"the convolutions of {name} after the merge",
            "one for each group that agrees",
            got,
            do,
        )


@exercise(
    "17.3",
    "Convolutions with different paddings cannot be merged; different activations do not matter.",
    "First: paddings 0 and 1, twice torch.relu. Second: paddings 1 and 1, torch.relu and torch.sigmoid.",
    minutes=20,
    difficulty=3,
)
def not_merged(answer):
    """The operators of a network that is not merged, and of one that is merged up to its activations."""
    require(
        len(answer) == 2,
        "the number of graphs",
        2,
        len(answer),
        "Pass the operators of both, after the pass.",
    )
    first, second = (list(operators) for operators in answer)
    do = "Give the two convolutions something that differs, such as the padding."
    require(
        first.count("nn.conv2d") == 2, "the convolutions of the first graph", 2, first.count("nn.conv2d"), do
    )
    require("split" not in first, "the operators of the first graph", "no split", first, do)
    do = "Let the convolutions agree in everything, and read the same value."
    require(
        second.count("nn.conv2d") == 1,
        "the convolutions of the second graph",
        1,
        second.count("nn.conv2d"),
        do,
    )
    require(second.count("split") == 1, "the splits of the second graph", 1, second.count("split"), do)
    after = second[second.index("split") + 1 :]
    require(len(set(after)) == 2, "the operators after the split", "two different activations", after, do)
