"""Specs of a detector's kernels: a kernel for a CPU carries one, and those for a GPU are made from it."""

from dataclasses import asdict, dataclass, fields

import tvm

_ATTRIBUTE = "detection"  # of a kernel: its name, and the fields of its spec


@dataclass(frozen=True)
class TopKSpec:
    """A choice of the best scores of each row; the shapes of the kernel's buffers say how many."""


@dataclass(frozen=True)
class NmsSpec:
    """The parameters of non-maximum suppression, most of them named as in MXNet's box_nms."""

    overlap_thresh: float = 0.5  # the largest intersection over union of two boxes that both stay
    valid_thresh: float = 0.0  # boxes stay if their score is larger
    topk: int = -1  # how many of the best boxes are considered; not positive: all
    coord_start: int = 2  # the first of the four fields of a row that hold its box
    score_index: int = 1
    id_index: int = -1  # the field with the class; -1: there is none
    background_id: int = -1  # boxes of this class are dropped
    force: bool = False  # boxes suppress those of other classes too
    center: bool = False  # boxes are centre, width and height, not left, top, right and bottom
    in_place: bool = False  # suppressed rows keep their position, with class -1


_SPECS = {"best_indices": TopKSpec, "suppressed": NmsSpec}  # by the name of the kernel


def with_spec(kernel: tvm.tirx.PrimFunc, spec: TopKSpec | NmsSpec) -> tvm.tirx.PrimFunc:
    """Return a kernel that carries a spec."""
    name = next(name for name, kind in _SPECS.items() if isinstance(spec, kind))
    return kernel.with_attr(_ATTRIBUTE, {"kernel": name, **asdict(spec)})


def spec_of(func: tvm.ir.BaseFunc) -> TopKSpec | NmsSpec | None:
    """Return the spec that a function carries, or None."""
    values = (func.attrs or {}).get(_ATTRIBUTE)
    if values is None:
        return None
    kind = _SPECS[values["kernel"]]
    return kind(**{field.name: type(field.default)(values[field.name]) for field in fields(kind)})
