"""`Quantized`, what `tn.quantize` returns, and its report: each layer's range, scale and error."""

import dataclasses
import math
from typing import Any

import tvm

from ..core.table import Table, draw


@dataclasses.dataclass(frozen=True)
class Row:
    """A layer of a quantized network.

    Attributes:
        layer: Its name.
        operator: Its operator.
        low: The least number that its input's uint8 stands for.
        high: The greatest.
        scale: The step between two of them.
        zero_point: The uint8 that stands for 0; None of a layer that stays float32.
        weight: The signal-to-noise ratio of its int8 weights, in dB; NaN if it has none.
        activation: That of its uint8 input.
        output: That of the network's output if only this layer computes in int8; NaN if it is not known.
        reason: Why it stays float32; "" if it does not.
    """

    layer: str
    operator: str
    low: float = math.nan
    high: float = math.nan
    scale: float = math.nan
    zero_point: int | None = None
    weight: float = math.nan
    activation: float = math.nan
    output: float = math.nan
    reason: str = ""


def _decibels(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1f}"


class Report(Table):
    """The layers of a quantized network, in order.

    Attributes:
        rows: A `Row` for each.
        output: The signal-to-noise ratio of the network's output on the samples, in dB.
    """

    text_columns = ("layer", "operator", "stays float32")
    formatters = (
        dict.fromkeys(("weight (dB)", "input (dB)", "output (dB)"), _decibels)
        | dict.fromkeys(("low", "high", "scale"), lambda x: "" if math.isnan(x) else f"{x:.4g}")
        | {"zero point": lambda x: "" if x is None or math.isnan(x) else f"{x:.0f}"}
    )

    def __init__(self, rows: list[Row], output: float):
        """Keep the rows."""
        self.rows, self.output = rows, output

    @property
    def summary(self) -> str:  # type: ignore[override]
        """How many layers compute in int8, and what is left of the output."""
        count = sum(not row.reason for row in self.rows)
        return (
            f"{count} of {len(self.rows)} layers compute in int8. Signal-to-noise ratio of the output: "
            f"{self.output:.1f} dB."
        )

    def frame(self) -> Any:
        """Make a pandas DataFrame with a row per layer; ratios are signal to noise, in dB."""
        import pandas as pd  # for speed: only where a table is shown

        names = {"zero_point": "zero point", "weight": "weight (dB)", "activation": "input (dB)"}
        names |= {"output": "output (dB)", "reason": "stays float32"}
        columns = [field.name for field in dataclasses.fields(Row)]
        frame = pd.DataFrame([dataclasses.asdict(row) for row in self.rows], columns=columns)
        return frame.rename(columns=names)

    def plot(self) -> Any:
        """Draw each layer's signal-to-noise ratios as dots, the layers that hurt the output most first."""
        return draw("quantization", self.rows, self.output)


class Quantized(tuple):
    """A quantized network: the pair of its module and parameters, and a report.

    It is a tuple of two, as every frontend returns, so `mod, params = tn.quantize(…)` and
    `tn.build(*tn.quantize(…))` work.

    Attributes:
        report: A `Report`.
    """

    report: Report

    def __new__(cls, mod: tvm.IRModule, params: dict, report: Report) -> "Quantized":
        """Make the pair."""
        self = super().__new__(cls, (mod, params))
        self.report = report
        return self

    def __getnewargs__(self) -> tuple:
        """Return the arguments of `__new__` for a copy."""
        return (*self, self.report)
