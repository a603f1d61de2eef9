"""All figures of the notebooks: a function draws one idea and returns the matplotlib figure.

A result's `plot()` calls a drawer. Colours are from the Okabe-Ito palette, readable with any colour vision.
"""

import json

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import LogLocator

from tvmfast.core.table import drawer

from .lessons import SCOREBOARD

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
GREY = "#999999"


@drawer
def times(comparison):
    """Draw the medians of a `measure.Comparison` as bars, in ms, with a line over each ratio's interval."""
    names = list(comparison)
    medians = np.array([t.median for t in comparison.values()]) * 1e3
    figure, axes = _axes(6.4, 0.9 + 0.45 * len(names))
    axes.barh(names, medians, color=BLUE, height=0.6)
    ends = medians.copy()
    for row, (name, median) in enumerate(zip(names, medians, strict=True)):
        ratio = f"{_digits(median / medians[0])}x"
        found = comparison.interval(name) if row else None
        if found:
            low, high = np.array(found) * medians[0]
            axes.errorbar((low + high) / 2, row, xerr=(high - low) / 2, fmt="none", ecolor="black", capsize=3)
            ends[row] = max(median, high)
            if found[0] <= 1 <= found[1]:
                ratio += ", no difference"
        axes.text(ends[row], row, f"  {_digits(median)} ms ({ratio})", va="center", fontsize=9)
    axes.set(xlim=(0, ends.max() * 1.5), xlabel=f"median time of a call (ms); ratio to {names[0]}")
    axes.invert_yaxis()
    return figure


def scoreboard(*marked: str):
    """Draw the stored run, ResNet-18 on one image in each runtime, as bars in ms on a logarithmic axis.

    The rows in `marked` get another colour; a line across the bars is the lower bound of tvmnotes' kernels on
    that machine. Raises ValueError for a row that the run does not have.
    """
    run = json.loads(SCOREBOARD.read_text(encoding="utf-8"))
    rows = run["rows"]
    unknown = [name for name in marked if name not in rows]
    if unknown:
        raise ValueError(
            f"unknown row {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, rows))}"
        )
    quartiles = [[row[key] for row in rows.values()] for key in ("low", "median", "high")]
    low, medians, high = np.array(quartiles) * 1e3
    figure, axes = _axes(7.2, 1.3 + 0.36 * len(rows))
    colors = [ORANGE if name in marked else BLUE for name in rows]
    axes.barh(list(rows), medians, xerr=(medians - low, high - medians), color=colors, capsize=3, height=0.6)
    for row, (median, above) in enumerate(zip(medians, high, strict=True)):
        axes.text(above * 1.1, row, f"{_digits(median)} ms", va="center", fontsize=9)
    bound = run["bound"] * 1e3
    ends = min(medians.min(), bound) / 2, high.max() * 3
    axes.set(xscale="log", xlim=ends, xlabel="median time of a call (ms), log axis")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title(
        f"{run['network']}, one picture, measured {run['date']}\n{run['machine']}", fontsize=9, loc="left"
    )
    axes.axvline(bound, color="black", linestyle="--", label=f"bound of tvmnotes: {_digits(bound)} ms")
    axes.legend(frameon=False, loc="lower right")
    axes.invert_yaxis()
    return figure


def top_k(tables: dict):
    """Draw the most probable classes as bars: a panel by name for each `vision.top_k` frame in `tables`."""
    figure, panels = plt.subplots(
        1, len(tables), figsize=(3.6 * len(tables), 2.4), sharex=True, squeeze=False, layout="constrained"
    )
    for axes, (name, table) in zip(panels[0], tables.items(), strict=True):
        rows = np.arange(len(table))
        axes.barh(rows, table["probability"], color=BLUE, height=0.6)
        axes.set_yticks(rows, table["class"].astype(str))
        axes.set_title(name, fontsize=10)
        axes.set_xlabel("probability")
        _tidy(axes)
        axes.invert_yaxis()
    return figure


def pictures(images, titles=None, columns: int = 10):
    """Show a grid of Pillow images or arrays (H, W), 0 black to 255 white, or (H, W, 3), with `titles`."""
    rows = -(-len(images) // columns)
    columns = min(columns, len(images))
    size = 3.2 if len(images) == 1 else 0.85
    height = size * rows * (1.0 if titles is None else 1.35)
    figure, panels = plt.subplots(
        rows, columns, figsize=(size * columns, height), squeeze=False, layout="constrained"
    )
    for axes in panels.flat:
        axes.axis("off")
    for i, (axes, image) in enumerate(zip(panels.flat, images, strict=False)):
        axes.imshow(np.asarray(image), cmap="gray", vmin=0, vmax=255)
        if titles is not None:
            axes.set_title(titles[i], fontsize=9)
    return figure


def detections(image, found: dict, least: float = 0.0, most: int = 5):
    """Draw an image per name in `found`, with boxes: classes (N,), scores (N,), corners in pixels (N, 4).

    Only the first `most` with a score of at least `least` are drawn, coloured by rank and clipped to the
    image.
    """
    image, colours = np.asarray(image), (BLUE, ORANGE, GREEN, GREY)
    height, width = image.shape[:2]
    figure, panels = plt.subplots(
        1, len(found), figsize=(4.2 * len(found), 4.4), squeeze=False, layout="constrained"
    )
    for axes, (name, (classes, scores, corners)) in zip(panels[0], found.items(), strict=True):
        axes.imshow(image)
        axes.set_title(name, fontsize=10)
        axes.axis("off")
        for rank in range(min(most, len(scores))):
            if scores[rank] >= least and classes[rank] >= 0:
                left, top, right, bottom = np.clip(corners[rank], 0, (width, height, width, height))
                colour = colours[rank % len(colours)]
                axes.add_patch(
                    plt.Rectangle((left, top), right - left, bottom - top, fill=False, color=colour, lw=2)
                )
                text = f"{int(classes[rank])}: {scores[rank]:.3f}"
                background = {"color": colour, "pad": 1, "alpha": 0.8}
                axes.text(left + 4, top + 14, text, fontsize=8, color="black", bbox=background)
    return figure


def counts(values: dict, label: str, mark: tuple[str, float] | None = None):
    """Draw counts by name as bars, the largest first.

    `label` says what is counted; `mark` is the name and value of a line to compare with.
    """
    pairs = sorted(values.items(), key=lambda pair: -pair[1])
    figure, axes = _axes(6.4, 0.9 + 0.3 * len(pairs))
    bars = axes.barh([name for name, _ in pairs], [n for _, n in pairs], color=BLUE, height=0.6)
    axes.bar_label(bars, padding=3, fontsize=9)
    axes.set_xlabel(label)
    axes.margins(x=0.1)
    if mark:
        axes.axvline(mark[1], color=ORANGE, linestyle="--", label=mark[0])
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.invert_yaxis()
    return figure


def spread(timing):
    """Draw a histogram of a `measure.Timing`, in ms, with mean, median and the shaded middle half."""
    figure, axes = _axes(6.4, 2.6)
    low, high = np.percentile(timing.seconds, [25, 75]) * 1e3
    label = f"middle half, {_digits(high - low)} ms wide"
    axes.axvspan(low, high, color=GREY, alpha=0.35, zorder=0, label=label)
    axes.hist(np.array(timing.seconds) * 1e3, bins=min(20, len(timing.seconds)), color=BLUE)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.axvline(timing.median * 1e3, color="black", label=f"median {_digits(timing.median * 1e3)} ms")
    mean = timing.mean * 1e3
    axes.axvline(mean, color=ORANGE, linestyle="--", label=f"mean {_digits(mean)} ms")
    axes.set(xlabel="time of a call (ms)", ylabel="calls")
    axes.legend(frameon=False)
    return figure


def steps(speeds: dict, marks: dict):
    """Draw GFLOP/s by step as bars on a logarithmic axis, and a named line for each speed in `marks`."""
    figure, axes = _axes(6.8, 1.2 + 0.32 * len(speeds))
    bars = axes.barh(list(speeds), list(speeds.values()), color=BLUE, height=0.6)
    labels = [_digits(value) for value in speeds.values()]
    axes.bar_label(bars, labels, padding=3, fontsize=9, bbox={"color": "white", "pad": 0.5})  # covers lines
    for (name, value), color in zip(marks.items(), (ORANGE, GREEN, GREY), strict=False):
        axes.axvline(value, color=color, linestyle="--", zorder=0, label=f"{name}: {_digits(value)}")
    speed = [*speeds.values(), *marks.values()]
    axes.set(xscale="log", xlim=(min(speed) / 2, max(speed) * 1.6), xlabel="GFLOP/s, logarithmic axis")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False, ncols=len(marks), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    axes.invert_yaxis()
    return figure


def by_level(calls: dict, comparison):
    """Draw builds side by side: kernel calls above, a run's median time in ms below, on a log axis.

    `calls` has counts by name, and `comparison` is a `measure.Comparison` of the same names.
    """
    figure, panels = plt.subplots(2, 1, figsize=(5.6, 4.4), sharex=True, layout="constrained")
    medians = [comparison[name].median * 1e3 for name in calls]
    rows = (
        (list(calls.values()), ORANGE, "kernel calls in a run"),
        (medians, BLUE, "median time of a run (ms)"),
    )
    for axes, (values, color, label) in zip(panels, rows, strict=True):
        bars = axes.bar(list(calls), values, color=color, width=0.6)
        axes.bar_label(bars, [_digits(value) for value in values], padding=2, fontsize=9)
        axes.set_ylabel(label)
        axes.margins(y=0.15)
        _tidy(axes)
    panels[1].set_yscale("log")
    return figure


def by_size(curves: dict, label: str, peak: float):
    """Plot GFLOP/s over sizes that double: a line for each name in `curves` (up to four), a dict by size.

    `label` says what the sizes count; `peak` is the machine's, in GFLOP/s.
    """
    figure, axes = _axes(6.4, 3.4)
    for index, (name, speeds) in enumerate(curves.items()):
        form = {"color": (BLUE, ORANGE, GREEN, GREY)[index], "marker": "os^d"[index]}
        axes.plot(list(speeds), list(speeds.values()), label=name, **form)
    axes.axhline(peak, color="black", linestyle="--", label="peak")
    sizes = sorted({size for speeds in curves.values() for size in speeds})
    axes.set(xscale="log", ylim=(0, None), xlabel=label, ylabel="GFLOP/s")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xticks([], minor=True)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


@drawer
def before_and_after(times: dict):
    """Draw bars in ms from pairs of seconds (before, after) by name, the longest first, with their ratios."""
    pairs = sorted(times.items(), key=lambda pair: -pair[1][0])
    figure, axes = _axes(6.4, 1.1 + 0.34 * len(pairs))
    rows = np.arange(len(pairs))
    before, after = np.array([pair for _, pair in pairs]).T * 1e3
    axes.barh(rows - 0.19, before, 0.36, color=GREY, label="before")
    axes.barh(rows + 0.19, after, 0.36, color=BLUE, label="after")
    for row, (was, now) in enumerate(zip(before, after, strict=True)):
        axes.text(max(was, now), row, f" {now / was:.2f}x", va="center", fontsize=8)
    axes.set_yticks(rows, [name for name, _ in pairs], fontsize=9)
    axes.set(xlim=(0, max(*before, *after) * 1.12), xlabel="time in a run of the network (ms)")
    axes.legend(frameon=False, loc="lower right")
    axes.invert_yaxis()
    return figure


def best_so_far(runs: dict, operations: int):
    """Draw each tuner's best GFLOP/s after 1, 2, 3, … trials: the median of its runs and the middle half.

    `runs` has up to four names, each with a list of runs of equal length: the seconds of the trials, in
    order. `operations` are the FLOPs of a call.
    """
    figure, axes = _axes(6.4, 3.2)
    longest = 1
    for index, (name, seconds) in enumerate(runs.items()):
        color = (GREY, ORANGE, GREEN, BLUE)[index]
        best = operations / np.minimum.accumulate(seconds, axis=1) / 1e9
        trials = np.arange(1, best.shape[1] + 1)
        low, middle, high = np.percentile(best, [25, 50, 75], axis=0)
        axes.fill_between(trials, low, high, step="post", color=color, alpha=0.2, linewidth=0)
        axes.step(trials, middle, where="post", color=color, label=name)
        longest = max(longest, len(trials))
    axes.set(xscale="log", xlabel="trials", ylabel="best so far (GFLOP/s)")
    axes.set_xticks([tick for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if tick <= longest])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.legend(frameon=False, loc="upper left")
    return figure


def predicted(scores, seconds, taught=()):
    """Plot a cost model's scores of configs (the higher the faster) against their measured times, in ms.

    `seconds` has the times; `taught`, the indices of training configs, are drawn in another colour.
    """
    scores, measured = np.asarray(scores), np.asarray(seconds) * 1e3
    seen = np.zeros(len(scores), bool)
    seen[list(taught)] = True
    figure, axes = _axes(5.2, 3.2)
    for which, color, label in ((~seen, BLUE, "never seen"), (seen, ORANGE, "trained on")):
        if which.any():
            look = {"s": 14, "color": color, "alpha": 0.7, "linewidths": 0, "label": label}
            axes.scatter(scores[which], measured[which], **look)
    axes.set(yscale="log", xlabel="the model's score: the higher, the faster", ylabel="measured (ms)")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_yticks([], minor=True)
    axes.legend(frameon=False)
    return figure


def heat(values, rows, columns, labels: tuple[str, str, str], marks: dict | None = None):
    """Draw a heat map of `values` (len(rows), len(columns)), NaN for none; labels: of rows, columns, values.

    `marks` names one or two fields, as (row, column) with values of `rows` and `columns`.
    """
    values = np.asarray(values, float)
    rows, columns = list(rows), list(columns)
    figure, axes = plt.subplots(
        figsize=(1.9 + 0.24 * len(columns), 1.3 + 0.28 * len(rows)), layout="constrained"
    )
    image = axes.imshow(values, cmap="viridis", aspect="auto")
    for index, (name, (row, column)) in enumerate((marks or {}).items()):
        x, y = columns.index(column), rows.index(row)
        form = {"marker": "os"[index], "markersize": (13, 7)[index]}
        form |= {"linestyle": "none", "markerfacecolor": "none"}
        for color, width, label in (("white", 3.5, None), ("black", 1.5, name)):
            axes.plot(x, y, **form, color=color, markeredgewidth=width, label=label)
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_yticks(range(len(rows)), rows, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set(ylabel=labels[0], xlabel=labels[1])
    if marks:
        axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(marks), fontsize=9)
    figure.colorbar(image, ax=axes, label=labels[2])
    return figure


@drawer
def shares(timings: dict, most: int = 12):
    """Draw each name's share of the total time as a bar, the largest first, labelled with its median in ms.

    `timings` has a `measure.Timing` by name; those after the first `most` share the last bar.
    """
    times = sorted(((name, t.median) for name, t in timings.items()), key=lambda pair: -pair[1])
    shown, remaining = times[:most], times[most:]
    colors = [BLUE] * len(shown)
    total = sum(seconds for _, seconds in times)
    if remaining:
        shown.append((f"{len(remaining)} more", sum(seconds for _, seconds in remaining)))
        colors.append(GREY)
    figure, axes = _axes(8.0, 0.9 + 0.28 * len(shown))
    rows = np.arange(len(shown))
    parts = 100 * np.array([seconds for _, seconds in shown]) / total

    bars = axes.barh(rows, parts, color=colors, height=0.65)
    axes.bar_label(bars, [f"{_digits(seconds * 1e3)} ms" for _, seconds in shown], padding=3, fontsize=8)
    axes.set_yticks(rows, [name for name, _ in shown], fontsize=8)
    axes.set(xlim=(0, parts.max() * 1.15), xlabel="share of the time of all kernels (%)")
    axes.invert_yaxis()
    return figure


@drawer
def roofline(profiles: dict, flops: float, bandwidth: float, others: dict | None = None):
    """Draw kernels as dots under the machine's roofline, on log axes: GFLOP/s against operations per byte.

    `profiles` has up to three names, each with a list of (operations, bytes, seconds) per kernel; the area of
    a dot grows with the kernel's share of the time. `flops` and `bandwidth` are the machine's, per second;
    `others` are its peaks for other kinds of numbers, by what they are called: dashed.
    """
    figure, axes = _axes(6.4, 4.0)
    intensities = [operations / moved for dots in profiles.values() for operations, moved, _ in dots]
    peaks = {"": flops, **(others or {})}
    ridges = [each / bandwidth for each in peaks.values()]
    least, most = min(*intensities, *ridges) / 2, max(*intensities, *ridges) * 2
    limits = f"the machine: {_digits(flops / 1e9)} GFLOP/s, {_digits(bandwidth / 1e9)} GB/s"
    for (name, each), ridge in zip(peaks.items(), ridges, strict=True):
        ends = np.array([ridges[0], ridge, most] if name else [least, ridge, most])
        line = "--" if name else "-"
        axes.plot(ends, np.minimum(ends * bandwidth, each) / 1e9, line, color="black", lw=1.2, zorder=1)
        limits += f"\nof {name}: {_digits(each / 1e9)} Gop/s" if name else ""
    axes.text(0.02, 0.97, limits, fontsize=9, va="top", transform=axes.transAxes)
    for index, (name, dots) in enumerate(profiles.items()):
        operations, moved, seconds = np.array(dots, float).T
        look = {"color": (BLUE, ORANGE, GREEN)[index], "marker": "os^"[index], "edgecolors": "black"}
        look |= {"alpha": 0.7, "linewidths": 0.5}
        areas = 12 + 400 * seconds / seconds.sum()
        axes.scatter(operations / moved, operations / seconds / 1e9, areas, label=name, zorder=2, **look)
    words = "operations for each byte read or written (FLOP/byte)"
    axes.set(xscale="log", yscale="log", xlabel=words, ylabel="GFLOP/s")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    if len(profiles) > 1:
        for handle in axes.legend(frameon=False, loc="lower right").legend_handles:
            handle.set_sizes([40])
    return figure


@drawer
def quantization(rows: list, output: float):
    """Draw the signal-to-noise ratios of a quantized network's layers in dB, the worst for the output first.

    `rows` are those of a `quantization.report.Report`; `output` is the ratio of the output, all in int8.
    """
    known = sorted((row for row in rows if row.output < np.inf), key=lambda row: row.output)
    figure, axes = _axes(7.2, 1.2 + 0.22 * len(known))
    dots = (("weight", GREY, "s", "its weights"), ("activation", ORANGE, "^", "its input"))
    dots += (("output", BLUE, "o", "the output, if it alone is int8"),)
    for name, color, marker, label in dots:
        ratios = [getattr(row, name) for row in known]
        axes.plot(ratios, range(len(known)), marker, color=color, label=label, markersize=5)
    axes.axvline(output, color="black", linestyle="--", label=f"the output: {output:.1f} dB")
    names = [row.layer + (" (float32)" if row.reason else "") for row in known]
    axes.set_yticks(range(len(known)), names, fontsize=8)
    axes.set(xlabel="signal-to-noise ratio (dB): the higher, the better")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.4, 1.0))
    axes.invert_yaxis()
    return figure


def by_threads(timings: dict):
    """Plot median ms against threads, from `measure.Timing`s by (threads, bound); dotted: perfect scaling."""
    figure, axes = _axes(6.4, 3.2)
    counts = sorted({count for count, _ in timings})
    for bound, color, form in ((True, BLUE, "o-"), (False, ORANGE, "s--")):
        medians = [timings[count, bound].median * 1e3 for count in counts]
        axes.plot(counts, medians, form, color=color, label="pinned to a core" if bound else "not pinned")
    first = min(timings[counts[0], bound].median for bound in (True, False)) * 1e3
    even = [first * counts[0] / count for count in counts]
    axes.plot(counts, even, ":", color="black", label="shared out evenly")
    axes.set(ylim=0, xticks=counts, xlabel="threads", ylabel="median time of a run (ms)")
    axes.legend(frameon=False)
    return figure


def timeline(calls):
    """Draw the calls of a run as bars by kind: a DataFrame with the columns kind, begin (ms) and ms."""
    kinds = list(dict.fromkeys(calls["kind"]))
    figure, axes = _axes(8.0, 1.0 + 0.4 * len(kinds))
    for row, kind in enumerate(kinds):
        some = calls[calls["kind"] == kind]
        look = {"color": (BLUE, ORANGE, GREEN, GREY)[row], "edgecolor": "white", "linewidth": 0.5}
        axes.barh([row] * len(some), some["ms"], 0.6, some["begin (ms)"], **look)
    axes.set_yticks(range(len(kinds)), kinds)
    axes.set_xlabel("time since the run began (ms)")
    axes.invert_yaxis()
    return figure


def memory(alive: dict):
    """Draw the MB that are live at each call of a run, from lists of bytes in order by name (up to four)."""
    figure, axes = _axes(6.4, 2.8)
    for index, (name, held) in enumerate(alive.items()):
        color = (BLUE, ORANGE, GREEN, GREY)[index]
        edges = np.linspace(0, 100, len(held) + 1)
        axes.stairs(np.array(held) / 1e6, edges, color=color, fill=True, alpha=0.6, label=name)
    axes.set(xlabel="part of the run's calls (%)", ylabel="values alive (MB)")
    axes.legend(frameon=False)
    return figure


def by_server(names: list[str], marks: dict | None = None):
    """Draw which server measured each trial, in order; `marks` names moments, each by a trial's number."""
    rows = sorted(set(names))
    figure, axes = _axes(6.4, 1.2 + 0.4 * len(rows))
    axes.scatter(
        range(1, len(names) + 1), [rows.index(name) for name in names], marker="|", s=120, color=BLUE
    )
    for index, (mark, trial) in enumerate((marks or {}).items()):
        color = (ORANGE, GREEN)[index % 2]
        axes.axvline(trial + 0.5, color=color, linestyle="--", label=mark)
    axes.set_yticks(range(len(rows)), rows)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(ylim=(-0.6, len(rows) - 0.4), xlabel="trial")
    if marks:
        axes.legend(frameon=False, ncols=len(marks), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure


def _digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _axes(width: float, height: float):
    figure, axes = plt.subplots(figsize=(width, height), layout="constrained")
    _tidy(axes)
    return figure, axes


def _tidy(axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
