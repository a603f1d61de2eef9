"""MXNet's two files, read without MXNet: the symbol, which is JSON, and .params, a list of named arrays.

Sources: the savers and loaders of MXNet 1.9.1 (src/ndarray/ndarray.cc, src/nnvm/legacy_json_util.cc, nnvm's
JSON pass), and of earlier versions whose files it can still read.
"""

import json
import math
import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass
class Node:
    """A node of the graph; an input or a parameter is a variable, of op "null".

    Each of `inputs` is the number of a node and the number of one of its outputs. In NumPy mode a single
    number has no axis.
    """

    op: str
    name: str
    attrs: dict[str, str]
    inputs: list[tuple[int, int]] = field(default_factory=list)
    numpy_mode: bool = False


@dataclass
class Graph:
    """The nodes, each after what it reads, and the outputs, in the form of a node's inputs."""

    nodes: list[Node]
    heads: list[tuple[int, int]]

    def variables(self) -> list[str]:
        """Return the names of the inputs and parameters."""
        return [node.name for node in self.nodes if node.op == "null"]


# The states that operators had besides their inputs before version 0.9, which made them ordinary variables.
_STATES = {"BatchNorm": ("moving_mean", "moving_var"), "CuDNNBatchNorm": ("moving_mean", "moving_var")}
_NO_SYMBOL = "expected the JSON of an MXNet symbol"


def read_symbol(source: str | os.PathLike) -> Graph:
    """Read the graph of a -symbol.json file, or of its text, as MXNet 0.8 to 1.9 write it.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not a symbol; the message says what is wrong.
    """
    text, name = str(source), "the text"
    if not text.lstrip().startswith("{"):
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(
                f"no symbol file at {text[:200]!r}; expected the path of a -symbol.json, or its text"
            )
        name = repr(str(path))
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{_NO_SYMBOL}; {name} is not text (a .params file goes second)") from None
    try:
        entries = json.loads(text)
    except RecursionError:
        raise ValueError(f"{_NO_SYMBOL}; {name} is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{_NO_SYMBOL}; {name} is cut short or damaged: {error}") from None
    try:
        return _graph(entries)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{_NO_SYMBOL}; {name} is JSON, but no symbol: {reason}") from None


def _graph(entries: dict) -> Graph:
    nodes, positions = [], []  # the latter: of each node of the file among `nodes`
    facts = entries.get("attrs", {})
    version, numpy_mode = (facts.get(name, [None, 0])[1] for name in ("mxnet_version", "is_np_shape"))
    for position, entry in enumerate(entries["nodes"]):
        # "param" held what the operator reads up to 0.8, "attr" then and "attrs" now may hold more than that.
        attrs = {}
        for key in ("attr", "attrs", "param"):
            attrs |= {str(name): str(value) for name, value in (entry.get(key) or {}).items()}
        node = Node(str(entry["op"]), str(entry["name"]), attrs, numpy_mode=bool(numpy_mode))
        for source, *tail in entry["inputs"]:
            if not 0 <= source < position:
                raise ValueError(f"node {position} reads node {source}, which does not come before it")
            node.inputs.append((positions[source], _output(tail)))
        if node.op == "null" and node.inputs:
            raise ValueError(f"variable {node.name!r} has inputs")
        if version < 900 and len(node.inputs) == 3 and node.op in _STATES:
            for state in _STATES[node.op]:
                node.inputs.append((len(nodes), 0))
                nodes.append(Node("null", f"{node.name}_{state}", {}))
        if version < 905 and node.op in ("argmax", "argmin") and node.attrs.get("axis") == "-1":
            del node.attrs["axis"]  # it meant all axes
        positions.append(len(nodes))
        nodes.append(node)
    heads = [(positions[source], _output(tail)) for source, *tail in entries["heads"]]
    if not heads or min(source for source, *_ in entries["heads"]) < 0:
        raise ValueError("no outputs (heads)")
    return Graph(nodes, heads)


def _output(tail: list) -> int:
    """Return which output of a node is read: the first of what follows the node's number, 0 by default."""
    number = tail[0] if tail else 0
    if type(number) is not int or number < 0:
        raise ValueError(f"output {number} of a node is read; they count from 0")
    return number


_LIST = 0x112
_V1 = 0xF993FAC8
_V2 = 0xF993FAC9
_V3 = 0xF993FACA
_DTYPES = (
    *("float32", "float64", "float16", "uint8", "int32", "int8", "int64"),
    *("bool", "int16", "uint16", "uint32", "uint64"),
)
_MOST_AXES = 32


class _Reader:
    """A cursor over a file in memory, which never reads past its end."""

    def __init__(self, data, name: str):
        self.data, self.name = data, name
        self.at = 0

    def fail(self, reason: str):
        raise ValueError(
            f"expected a .params file as MXNet saves it; {self.name} ({len(self.data):,} bytes) {reason} "
            f"at byte {self.at:,}"
        )

    def take(self, kind: str) -> tuple:
        """Return the next values of a `struct` format."""
        size = struct.calcsize(kind)
        if size > len(self.data) - self.at:
            self.fail("is cut short")
        self.at += size
        return struct.unpack_from(kind, self.data, self.at - size)

    def one(self, kind: str) -> int:
        """Return the next value of a little-endian `struct` format."""
        return self.take("<" + kind)[0]

    def shape(self, axes: int, kind: str) -> tuple[int, ...]:
        if not 0 <= axes <= _MOST_AXES:
            self.fail(f"has an array of {axes} axes")
        shape = self.take(f"<{axes}{kind}")
        if min(shape, default=0) < 0:
            self.fail(f"has an array of shape {shape}")
        return shape

    def array(self) -> np.ndarray | None:
        """Return the next array, a view of the file, or None for one without a shape."""
        magic = self.one("I")
        if magic in (_V2, _V3):
            if storage := self.one("i"):
                self.fail(f"has a sparse array (storage type {storage}), which no network reads,")
            axes = self.one("i")
            if axes == (-1 if magic == _V3 else 0):
                return None
            shape = self.shape(axes, "q")
        elif magic == _V1:
            shape = self.shape(self.one("I"), "q")
        else:  # before version 1 the number of axes took the magic number's position
            shape = self.shape(magic, "I")
        if not shape and magic != _V3:
            return None
        self.take("<ii")  # the device that it was on
        kind = self.one("i")
        if not 0 <= kind < len(_DTYPES):
            self.fail(f"has an array of an unknown dtype ({kind})")
        dtype = np.dtype(_DTYPES[kind])
        count = math.prod(shape)
        if count * dtype.itemsize > len(self.data) - self.at or max(shape, default=0) > len(self.data):
            self.fail(f"promises an array of shape {shape}, {dtype}, and is cut short")
        array = np.frombuffer(self.data, dtype.newbyteorder("<"), count, self.at).reshape(shape)
        self.at += array.nbytes
        return array

    def text(self) -> str:
        length = self.one("Q")
        if length > len(self.data) - self.at:
            self.fail("is cut short")
        content = bytes(self.data[self.at : self.at + length])
        self.at += length
        try:
            return content.decode()
        except UnicodeDecodeError:
            self.fail("has a name that is not text")


def read_params(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Read the arrays of a .params file, as views of the file, by name without "arg:" and "aux:".

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not a .params file; the message says what is wrong, and where.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no .params file at {str(path)!r}")
    with path.open("rb") as file:
        empty = os.fstat(file.fileno()).st_size == 0
        data = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _Reader(data, repr(str(path)))
    if reader.one("Q") != _LIST:
        reader.fail("begins with something else")
    reader.take("<Q")
    count = reader.one("Q")
    if count > len(data) // 4:
        reader.fail(f"promises {count:,} arrays")
    arrays = [reader.array() for _ in range(count)]
    if reader.one("Q") != count:
        reader.fail("has not one name for each array: it is a list without names, or damaged,")
    names = [reader.text() for _ in range(count)]
    params = {bare_name(name): array for name, array in zip(names, arrays, strict=True)}
    if len(params) < count:
        reader.fail("has two arrays of one name")
    return {name: array for name, array in params.items() if array is not None}


def bare_name(name: str) -> str:
    """Return a parameter's name in the symbol, without "arg:" (trained) or "aux:" (updated in training)."""
    return name.removeprefix("arg:").removeprefix("aux:")
