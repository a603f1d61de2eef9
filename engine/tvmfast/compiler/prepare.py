"""Weights that a saved network has in int8, and the library's function that makes of them what kernels read.

The kernels of a quantized network read int16 where an instruction multiplies pairs, float32 if they are
depthwise, and int16 transformed by Winograd's method. All of that is computed from int8, and saved as int8:
`tvmfast.load` computes it once (runtime/narrow.py), and other programs call the function `prepare`, which
has kernels of its own for that.
"""

import math
from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax, te, tirx

from ..runtime.narrow import narrowed, widened
from .schedule.rules import winograd_int

NAME = "prepare"
_FEWEST = 512  # elements of an array that is worth it


def narrow(graph: dict, arrays: Mapping[str, tvm.runtime.Tensor]) -> dict[str, dict]:
    """Describe the parameters to be saved in int8, by name, as runtime/narrow.py says.

    These are read by kernels that sum products of integers, and int8 holds all of their bits.
    """
    found = {}
    for node in graph["nodes"]:
        operators = graph["costs"].get(node["kernel"], {}).get("operators", ())
        if not any("_of_integers" in operator for operator in operators):
            continue
        schedule = graph["kernels"][node["kernel"]]
        for name in (each for each in node["reads"] if each in arrays and each not in found):
            how = {"dtype": str(arrays[name].dtype)}
            if how["dtype"] not in ("int16", "float32") or math.prod(arrays[name].shape) < _FEWEST:
                continue
            array = arrays[name].numpy()
            if schedule["family"] == "winograd_int" and how["dtype"] == "int16":
                how["transform"] = winograd_int.transforms(schedule["m"]).of_weight.tolist()
            if widened(narrowed(array, how), how).tobytes() == array.tobytes():
                found[name] = how
    return found


def prepare(arrays: Mapping[str, tvm.runtime.Tensor], hows: Mapping[str, dict]) -> tvm.IRModule:
    """Make the function: it takes the parameters of `main` as they are saved, and returns what `main` takes.

    `hows` is what `narrow` returns of the arrays.
    """
    builder, results = relax.BlockBuilder(), []
    types = [_saved(array, hows.get(name)) for name, array in arrays.items()]
    saved = relax.Var("params", tvm.ir.TupleType(types))
    with builder.function(NAME, [saved]):
        with builder.dataflow():
            for number, (name, array) in enumerate(arrays.items()):
                value = builder.emit(relax.TupleGetItem(saved, number))
                results.append(_widened(builder, value, array, hows[name]) if name in hows else value)
            result = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(result)
    return builder.get()


def checked(
    mod: tvm.IRModule, arrays: Mapping[str, tvm.runtime.Tensor], hows: Mapping[str, dict]
) -> tvm.IRModule:
    """Have a lowered `main`, which looks at no parameter, refuse those that `prepare` has not returned."""
    main, (name, how) = mod["main"], next(iter(hows.items()))
    nothing = tvm.ir.TupleType([])
    taken = relax.TupleGetItem(main.params[-1], list(arrays).index(name))
    param = relax.Var("prepared", relax.TensorType(tuple(arrays[name].shape), how["dtype"]))
    facts = (
        relax.prim_value(len(arrays[name].shape)),
        tvm.ir.GenericConst(tvm.DataType(how["dtype"]), relax.AnyType()),
        tvm.ir.StringImm(
            f"main takes the parameters that the function {NAME} returns of those in the file: "
        ),
    )
    check = tvm.ir.Call(relax.ExternFunc("vm.builtin.check_tensor_info"), [param, *facts], None, [nothing])
    first = [relax.VarBinding(param, taken), relax.VarBinding(relax.Var("_", nothing), check)]
    body = relax.SeqExpr([relax.BindingBlock(first), *main.body.blocks], main.body.body)
    mod = mod.clone()
    mod["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return mod


def _saved(array: tvm.runtime.Tensor, how: dict | None) -> relax.TensorType:
    shape = tuple(array.shape)
    if how and "transform" in how:
        shape = shape[0], 3, 3, *shape[3:]
    return relax.TensorType(shape, "int8" if how else str(array.dtype))


def _widened(
    builder: relax.BlockBuilder, value: relax.Var, array: tvm.runtime.Tensor, how: dict
) -> relax.Var:
    shape, dtype = tuple(array.shape), how["dtype"]
    transform = np.array(how.get("transform", [[1]]))
    matrix = np.kron(transform, transform).astype(dtype)
    elements, taps = matrix.shape
    outs = shape[0] if "transform" in how else 1
    columns = math.prod(shape) // (outs * elements)
    rows = builder.emit(relax.op.reshape(value, (outs, taps, columns)))
    kernel = builder.add_func(_product(taps, dtype), f"widened_{dtype}")
    wide = relax.TensorType((outs, elements, columns), dtype)
    made = builder.emit(relax.call_tir(kernel, [rows, relax.const(matrix)], wide))
    return builder.emit(relax.op.reshape(made, shape))


def _product(taps: int, dtype: str) -> tirx.PrimFunc:
    """Return the kernel that multiplies each of the saved rows of a weight by a matrix, of whole numbers."""
    outs, elements, columns = (tirx.Var(name, "int64") for name in ("outs", "elements", "columns"))
    saved = te.placeholder((outs, taps, columns), "int8", "saved")
    matrix = te.placeholder((elements, taps), dtype, "matrix")

    def element(o, e, c):
        first, *others = (matrix[e, t] * saved[o, t, c].astype(dtype) for t in range(taps))
        return sum(others, first)

    return te.create_prim_func([saved, matrix, te.compute((outs, elements, columns), element, "widened")])
