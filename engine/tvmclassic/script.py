"""`tvm.script.tir`, the TVMScript of TensorIR as TVM had it up to 0.21, and methods of its schedules.

Blocks have become sblocks since, and `T.prim_func` makes a function with blocks only where it is told to.
"""

import inspect

import tvm
from tvm.s_tir import dlight, meta_schedule
from tvm.script import tirx
from tvm.script.parser.core import dispatch, doc, utils
from tvm.script.parser.core.entry import parse

_TOKEN = "tir"
_DELEGATED = "enter_token exit_token tvm_annotation tvm_declare_function"


def prim_func(func=None, private: bool = False, check_well_formed: bool = True):
    """`T.prim_func`, with or without arguments: a function of TensorIR with blocks, from its source."""
    stack = inspect.stack()

    def parsed(func):
        if utils.is_defined_in_class(stack, func):
            return func  # I.ir_module parses the whole class
        outside = utils.inspect_function_capture(func)
        utils.resolve_closure_vars(func, outside, stack)
        made = parse(func, outside, check_well_formed=check_well_formed)
        made.__name__ = func.__name__
        return made

    parsed.dispatch_token = _TOKEN
    return parsed if func is None else parsed(func)


prim_func.dispatch_token = _TOKEN
_WITH_BLOCKS = doc.parse("@T.prim_func(s_tir=True)\ndef f(): pass").body[0].decorator_list


@dispatch.register(token=_TOKEN, type_name="FunctionDef")
def _function(parser, node) -> None:
    """Read a function as today's `T.prim_func(s_tir=True)`."""
    node.decorator_list[:0] = _WITH_BLOCKS
    dispatch.get("tirx", "FunctionDef")(parser, node)


for _name in _DELEGATED.split():
    dispatch.register(token=_TOKEN, type_name=_name)(dispatch.get("tirx", _name))


def func_attr(attrs: dict) -> None:
    """`T.func_attr`: attributes of TensorIR begin with "tirx." now, and their numbers are Python's."""
    tirx.func_attr({name.replace("tir.", "tirx.", 1): _plain(value) for name, value in attrs.items()})


def _plain(value):
    if isinstance(value, tvm.tirx.IntImm):
        return bool(value.value) if str(value.ty) == "bool" else int(value.value)
    return value


def spaces() -> dict[str, dict]:
    """Return the contents of the modules: {module: {attribute: value}}."""
    old = {
        "prim_func": prim_func,
        "func_attr": func_attr,
        "block": tirx.sblock,
        "block_attr": tirx.sblock_attr,
        "alloc_buffer": tirx.sblock_alloc_buffer,
    }
    return {
        "tvm.script.tir": {**_public(tirx), **old},
        "tvm.dlight": _public(dlight),
        "tvm.meta_schedule": _public(meta_schedule),
    }


def patches() -> list[tuple[object, str, object]]:
    """List the attributes to set, as (object, attribute name, value)."""
    schedule = tvm.s_tir.Schedule
    return [
        (schedule, "get_block", schedule.get_sblock),
        (tvm.ir.Var, "dtype", property(_dtype)),
        (tvm.ir.Expr, "dtype", property(_dtype_of_number)),
    ]


_DTYPE_OF_BUFFERS = tvm.ir.Var.dtype.fget


def _dtype(variable) -> str:
    """`Var.dtype`, which only buffers have kept."""
    of_number = isinstance(variable.ty, tvm.ir.PrimType)
    return str(variable.ty) if of_number else _DTYPE_OF_BUFFERS(variable)


def _dtype_of_number(value) -> str:
    """`PrimExpr.dtype`; other expressions have none."""
    if not isinstance(value.ty, tvm.ir.PrimType):
        raise AttributeError(f"{type(value).__name__} of type {value.ty} has no dtype")
    return str(value.ty)


def _public(module) -> dict:
    return {name: getattr(module, name) for name in dir(module) if name[0] != "_"}
