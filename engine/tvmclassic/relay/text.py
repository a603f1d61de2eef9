"""Relay's text format, in which modules and expressions print."""

import contextlib
import itertools

from . import ir
from .lower import UnknownType
from .ops import OPERATORS


def astext(what, show_meta_data: bool = False, annotate=None, types: bool = True) -> str:
    """Return a module, function or expression as text.

    With `types`, known types are printed; those of a module are inferred first.
    """
    printer = _Printer(types=types)
    if isinstance(what, ir.IRModule):
        functions = what.by_name()
        for function in functions.values():
            with contextlib.suppress(UnknownType):  # a type that is known only when it runs is left out
                function.infer(functions)
        return "\n".join(printer.function(f, f"def @{name}") for name, f in functions.items())
    if isinstance(what, ir.Function):
        return printer.function(what, "fn ")
    result = printer.value(what)
    free = [f"free_var {printer.value(v)}{printer.annotated(v)};" for v in ir.free_vars(what)]
    return "\n".join([*free, *printer.lines, result])


ir.Expr.astext = ir.Expr.__str__ = astext
ir.IRModule.astext = ir.IRModule.__str__ = ir.IRModule.__repr__ = astext


class _Printer:
    """Printer of one function: one numbered line per call; constants are numbered across the whole text."""

    def __init__(self, indent: int = 0, constants=None, types: bool = True):
        self.names, self.lines = {}, []
        self.constants = constants or itertools.count()
        self.pad = "  " * indent
        self.types = types

    def function(self, function: ir.Function, head: str) -> str:
        """Return the text of a function, starting with `head`."""
        inner = _Printer(1, self.constants, self.types)
        params = ", ".join(f"{inner.value(p)}{self.annotated(p)}" for p in function.params)
        result = inner.value(function.body)
        ret_type = function.known_ret_type if self.types else None
        returns = "" if ret_type is None else f" -> {ret_type!r}"
        attrs = "".join(f", {k}={_attribute(v)}" for k, v in function.attrs.items())
        return "\n".join([f"{head}({params}{attrs}){returns} {{", *inner.lines, f"  {result}", "}", ""])

    def value(self, expr: ir.Expr) -> str:
        """Write the lines that `expr` needs, and return its name or, for the last call, its text."""
        for node in ir.post_order(expr):
            if node not in self.names:
                self.names[node] = self._name(node)
        last = self.lines[-1].removeprefix(self.pad) if self.lines else ""
        name = self.names[expr]
        if isinstance(expr, ir.Call | ir.If) and last.startswith(f"{name} = "):  # a result needs no number
            self.lines.pop()
            self.names[expr] = last.removeprefix(f"{name} = ").removesuffix(";")
        return self.names[expr]

    def _name(self, node) -> str:
        if isinstance(node, ir.Var):
            return self._unique(node.name_hint)
        if isinstance(node, ir.Constant):
            return self._constant(node)
        if isinstance(node, ir.Tuple):
            fields = ", ".join(self.names[f] for f in node.fields)
            return f"({fields},)" if len(node.fields) == 1 else f"({fields})"
        if isinstance(node, ir.TupleGetItem):
            return f"{self.names[node.tuple_value]}.{node.index}"
        if isinstance(node, ir.Function):
            return self.function(node, "fn ").strip()
        if isinstance(node, ir.Let):
            return self._let(node)
        number = f"%{sum(line.startswith(f'{self.pad}%') and ' = ' in line for line in self.lines)}"
        self.lines.append(f"{self.pad}{number} = {self._operation(node)}{self._comment(node)};")
        return number

    def _let(self, node) -> str:
        value = self.value(node.value)
        name = self.names[node.var] = self._unique(node.var.name_hint)
        if isinstance(node.value, ir.Call):
            self.names[node.value] = name
        self.lines.append(f"{self.pad}let {name}{self.annotated(node.var)} = {value};")
        return self.value(node.body)

    def _operation(self, node) -> str:
        if isinstance(node, ir.If):
            return "if ({}) {{ {} }} else {{ {} }}".format(*(self.names[part] for part in node.children()))
        if isinstance(node.op, ir.Op):
            name = node.op.name
        elif isinstance(node.op, ir.Function):
            name = self.function(node.op, "fn ").strip().replace("\n", f"\n{self.pad}")
        else:
            name = f"@{node.op.name_hint}" if hasattr(node.op, "name_hint") else self.names[node.op]
        args = [self.names[arg] for arg in node.args]
        defaults = OPERATORS[name].defaults if name in OPERATORS else {}
        attrs = [
            f"{key}={_attribute(value)}"
            for key, value in (node.attrs.items() if node.attrs else ())
            if value is not None and value != "" and _listed(defaults.get(key)) != _listed(value)
        ]
        return f"{name}({', '.join(args + attrs)})"

    def annotated(self, v: ir.Var) -> str:
        """Return `: type` for a variable, or "" without one."""
        return f": {v.known_type!r}" if self.types and v.known_type is not None else ""

    def _comment(self, node) -> str:
        return f" /* ty={node.known_type!r} */" if self.types and node.known_type is not None else ""

    def _constant(self, node) -> str:
        array = node.data.numpy()
        if array.ndim == 0:
            suffix = {"float32": "f", "float64": "f64", "int64": "i64", "bool": ""}.get(array.dtype.name, "")
            return f"{_number(array.item())}{suffix}"
        return f"meta[relay.Constant][{next(self.constants)}]{self._comment(node)}"

    def _unique(self, hint: str) -> str:
        taken = set(self.names.values())
        name, count = f"%{hint}", 0
        while name in taken:
            count += 1
            name = f"%{hint}_{count}"
        return name


def _listed(value):
    return list(value) if isinstance(value, tuple) else value


def _number(value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _attribute(value) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_attribute, value))}]"
    return f"{value:g}f" if isinstance(value, float) else str(value)
