"""The machine of `relay.vm`: evaluates programs of Relay with branches, recursion and functions as values.

It follows calls and branches itself. What lies between them it compiles as networks of static shapes: each
when it first runs, and again for shapes that are new. So `relay.Any()` needs no kernels of its own. Networks
that were not used for long are dropped, where they are many or their weights, packed for each, are large.
"""

import contextvars
import logging
import math
from typing import NamedTuple

import tvm

from tvmfast.core.relax import array_key, bytes_of
from tvmfast.core.specs import dtype_of

from . import ir
from .lower import Unservable, to_relax
from .ty import TensorType, TupleType

_LOG = logging.getLogger(__name__)
_MOST_NETWORKS, _MOST_BYTES = 1024, 2 << 30  # of a program, but for the last one
_MOST_CALLS = 4096  # with constant attributes in place of computed ones


class Closure(NamedTuple):
    """A function as a value, with the variables around it."""

    function: ir.Function
    variables: dict


class _Network(NamedTuple):
    """A compiled part of a program, and the structure of each of its results: None, or a tuple of them."""

    compiled: object
    results: list


class Machine:
    """Evaluates expressions. A scope is a dictionary of the values of variables, and of expressions seen.

    A value is a tensor, a tuple of values, or a `Closure`. `functions` are the module's by name; `compiled`
    makes a network of `(IRModule, params)`; `weights` are constants by variable.
    """

    def __init__(self, functions: dict, compiled, weights: dict):
        self.functions, self.compiled = functions, compiled
        self.weights = weights
        self._straight: dict = {}  # by expression
        self._plans: dict = {}  # by expressions, and what of them is known: what `values` does
        self._reads: dict = {}  # likewise: the known expressions that a network reads
        self.networks: dict = {}  # by results, what they read, and the types of that
        self._settled: dict = {}  # by call, and the values of its attributes: a call with constant ones
        self._context = contextvars.copy_context()  # compiles as where the program was compiled
        self._chains: dict = {}  # by a let

    def call(self, function: ir.Function, args: list):
        """Return the result of a function."""
        return self.value(function.body, dict(zip(function.params, args, strict=True)))

    def value(self, expr, scope: dict):
        """Return the value of an expression; a call or branch that comes last takes no stack."""
        while expr not in scope:
            match expr:
                case ir.Function():
                    return Closure(expr, _variables(scope))
                case ir.Let():
                    expr = self._bound(expr, scope)
                case ir.If():
                    branches = expr.true_branch, expr.false_branch
                    (cond,) = self.values([expr.cond], scope, later=branches)
                    if (flag := cond.numpy()).size != 1:
                        raise ValueError(f"relay.If: expected a condition of one element, got {flag.shape}")
                    expr = branches[0 if flag.item() else 1]
                case ir.Call() if isinstance(expr.op, ir.Op) and not self._plain(expr):
                    expr = self._with_constants(expr, scope)
                case ir.Call() if not self._plain(expr):
                    args = self.values(expr.args, scope)
                    function, variables = self._callee(expr.op, scope)
                    if len(args) != len(function.params):
                        raise ValueError(
                            f"a function of {len(function.params)} parameters is called with {len(args)} "
                            "arguments"
                        )
                    scope = {**variables, **dict(zip(function.params, args, strict=True))}
                    expr = function.body
                case _:
                    return self.values([expr], scope)[0]
        return scope[expr]

    def values(self, exprs, scope: dict, later=()) -> list:
        """Return the values of several expressions; what `later` reads of them stays in the scope."""
        key = (tuple(exprs), later, _seen(scope))
        if key not in self._plans:
            self._plans[key] = self._plan(exprs, scope, later)
        leaves, kept, controls = self._plans[key]
        if controls:
            scope.update(zip(kept, self._run(kept, scope), strict=True))
            for node in controls:
                scope[node] = self.value(node, scope)
            kept = []
        results = self._run([*leaves, *kept], scope)
        scope.update(zip(kept, results[len(leaves) :], strict=True))
        by_leaf = dict(zip(leaves, results, strict=False))
        return [_filled(_structure(expr), by_leaf) for expr in exprs]

    def _plan(self, exprs, scope, later) -> tuple[list, list, list]:
        """Return what to compute, the parts of it to keep, and the branches and calls to follow first."""
        leaves = list(dict.fromkeys(leaf for expr in exprs for leaf in _leaves(_structure(expr))))
        parts = self._parts_outside(scope)
        nodes = list(dict.fromkeys(node for leaf in leaves for node in ir.post_order(leaf, parts)))
        controls = [node for node in nodes if node not in scope and not self._plain(node)]
        behind = set(controls)  # what depends on them
        for node in nodes:
            if any(part in behind for part in parts(node)):
                behind.add(node)
        inside = {node for each in (*controls, *later) for node in ir.post_order(each, ir.all_parts)}
        known = {node for node in nodes if isinstance(node, ir.Call) and node not in scope} - behind
        shared = known & inside
        read = {part for node in (inside | {*nodes}) - shared for part in ir.all_parts(node)} | {*later}
        kept = [node for node in nodes if node in shared and node in read]
        return leaves, kept, controls

    def _parts_outside(self, scope):
        """Return a function that lists the operands of a node, none of a known one, a call or a branch."""
        return lambda node: [] if node in scope or not self._plain(node) else node.operands()

    def _bound(self, let: ir.Let, scope: dict) -> ir.Expr:
        """Put the variable of a let, and of the next without branches, in the scope; return the body."""
        if isinstance(let.value, ir.Function):
            closure = Closure(let.value, _variables(scope))
            closure.variables[let.var] = scope[let.var] = closure  # it may call itself
            return let.body
        if not self.straight(let.value):
            scope[let.var] = self.value(let.value, scope)
            return let.body
        if let not in self._chains:
            table: dict = {}
            body: ir.Expr = let
            while isinstance(body, ir.Let) and self.straight(body.value):
                table[body.var], body = ir.substitute(body.value, table), body.body
            used = [node for node in ir.post_order(body, ir.all_parts) if node in table]
            self._chains[let] = used, [table[var] for var in used], body
        used, values, body = self._chains[let]
        scope.update(zip(used, self.values(values, scope), strict=True))
        return body

    def _with_constants(self, call: ir.Call, scope: dict) -> ir.Call:
        """Return a call whose attributes are known, such as the bounds of a strided_slice."""
        names = call.computed_attrs()
        arrays = [value.numpy() for value in self.values([call.attrs[name] for name in names], scope)]
        key = (call, *((array.tobytes(), array.shape, array.dtype.str) for array in arrays))
        if key not in self._settled:
            if len(self._settled) >= _MOST_CALLS:
                for table in (self._settled, self._plans, self._reads):
                    table.clear()
            constants = dict(zip(names, map(ir.const, arrays), strict=True))
            self._settled[key] = ir.Call(
                call.op, call.args, {**vars(call.attrs), **constants}, call.type_args
            )
        return self._settled[key]

    def _callee(self, op, scope: dict) -> tuple[ir.Function, dict]:
        """Return the function that a call means, and the variables around it."""
        if isinstance(op, tvm.ir.GlobalVar):
            if op.name_hint not in self.functions:
                raise ValueError(f"@{op.name_hint} is called, and the module has no such function")
            return self.functions[op.name_hint], {}
        called = self.value(op, scope)
        if not isinstance(called, Closure):
            raise TypeError(f"a call of {type(op).__name__}: expected a function, got a tensor or a tuple")
        return called

    def straight(self, expr: ir.Expr) -> bool:
        """Return whether an expression is a network: no branch, recursion or function as a value."""
        if expr not in self._straight:
            self._straight[expr] = False  # of a function that calls itself
            self._straight[expr] = all(
                self.straight(node.body) if isinstance(node, ir.Let) else self._plain(node)
                for node in ir.post_order(expr)
            )
        return self._straight[expr]

    def _plain(self, node: ir.Expr) -> bool:
        """Return whether an expression in a scope is part of a network if its operands are."""
        match node:
            case ir.If() | ir.Function() | ir.Let():
                return False
            case ir.Call() if isinstance(node.op, ir.Op):
                return not node.computed_attrs()
            case ir.Call():
                is_global = isinstance(node.op, tvm.ir.GlobalVar)
                callee = self.functions.get(node.op.name_hint) if is_global else node.op
                if not isinstance(callee, ir.Function):
                    return False
                return (is_global or not ir.free_vars(callee)) and self.straight(callee.body)
        return True

    # ------------------------------------------------------------ networks

    def _run(self, exprs: list, scope: dict) -> list:
        """Return the values of expressions that depend on known ones without a branch."""
        values = {expr: self._known(expr, scope) for expr in exprs}
        needed = [expr for expr, value in values.items() if value is None]
        if needed:
            key = (tuple(needed), _seen(scope))
            if key not in self._reads:
                parts = self._parts_outside(scope)
                nodes = dict.fromkeys(node for expr in needed for node in ir.post_order(expr, parts))
                self._reads[key] = [node for node in nodes if node in scope]
            reads = self._reads[key]
            given = [scope[node] for node in reads]
            network = self._network(key, reads, tuple(map(_type_of, given)))
            outputs = iter(network.compiled.run(list(flat(given))))
            results = (_rebuilt(structure, outputs) for structure in network.results)
            values.update(zip(needed, results, strict=True))
        return [values[expr] for expr in exprs]

    def _known(self, expr, scope: dict):
        """Return the value of an expression that needs no network, else None."""
        if expr in scope:
            return scope[expr]
        expr = self.weights.get(expr, expr)
        if isinstance(expr, ir.Constant):
            return expr.data
        if isinstance(expr, ir.TupleGetItem):
            whole = self._known(expr.tuple_value, scope)
            return None if whole is None else whole[expr.index]
        if isinstance(expr, ir.Var):
            raise ValueError(f"%{expr.name_hint} is used and not bound: add it to the function's parameters")
        return None

    def _network(self, key: tuple, reads: list, types: tuple) -> _Network:
        """Return a network, which becomes the last to be dropped; compile it if it is new."""
        network = self.networks.pop((key, types), None)
        is_new = network is None
        if is_new:
            network = self._context.copy().run(self._compile, list(key[0]), reads, types)
        self.networks[key, types] = network
        while is_new and len(self.networks) > 1 and self._is_full():
            del self.networks[next(iter(self.networks))]
        return network

    def _is_full(self) -> bool:
        """Return whether there are too many networks, or too many bytes of weights that are theirs alone."""
        arrays = {
            array_key(array): math.prod(array.shape) * bytes_of(array.dtype)
            for network in self.networks.values()
            for array in network.compiled.params.values()
        }
        for weight in self.weights.values():
            arrays.pop(array_key(weight.data), None)
        return len(self.networks) > _MOST_NETWORKS or sum(arrays.values()) > _MOST_BYTES

    def _compile(self, exprs: list, reads: list, types: tuple) -> _Network:
        """Compile expressions as one network that takes the values `reads`, of these types."""
        params: list = []
        known = {node: _variables_of(ty, params) for node, ty in zip(reads, types, strict=True)}
        function = ir.Function(params, ir.substitute(ir.Tuple(exprs), {**self.weights, **known}))
        lowered = to_relax(function, functions=self.functions)
        kinds = function.known_ret_type.fields
        if any(isinstance(kind, TupleType) for kind in kinds):  # networks return tensors
            pairs = zip(function.body.fields, kinds, strict=True)
            parts = [part for field, kind in pairs for part in _parts(field, kind)]
            lowered = to_relax(ir.Function(params, ir.Tuple(parts)), functions=self.functions)
        _LOG.debug("a network of %d results, from %s", len(kinds), ", ".join(map(str, types)) or "constants")
        return _Network(self.compiled(*lowered), [_kind(kind) for kind in kinds])


def _variables(scope: dict) -> dict:
    return {var: value for var, value in scope.items() if isinstance(var, ir.Var)}


def _seen(scope: dict) -> tuple:
    return tuple(node for node in scope if not isinstance(node, ir.Var))


def _structure(expr):
    """Return an expression, or the fields of a tuple as a tuple."""
    if isinstance(expr, ir.Tuple):
        return tuple(map(_structure, expr.fields))
    if isinstance(expr, ir.TupleGetItem) and isinstance(expr.tuple_value, ir.Tuple):
        return _structure(expr.tuple_value.fields[expr.index])
    return expr


def _leaves(structure) -> list:
    return (
        [leaf for part in structure for leaf in _leaves(part)]
        if isinstance(structure, tuple)
        else [structure]
    )


def _filled(structure, values: dict):
    return (
        tuple(_filled(part, values) for part in structure)
        if isinstance(structure, tuple)
        else values[structure]
    )


def _type_of(value):
    """Return the type of a value so that types compare: (shape, dtype), or a list of types as a tuple."""
    if isinstance(value, Closure):
        raise Unservable("a tuple of functions: pass each function by itself")
    if isinstance(value, tuple):
        return ("tuple", *map(_type_of, value))
    return tuple(int(n) for n in value.shape), dtype_of(value)


def flat(values):
    """Yield the tensors of several values."""
    for value in values:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield value


def _variables_of(ty: tuple, params: list) -> ir.Expr:
    """Return a variable of a type of `_type_of`, or a tuple of variables, which are added to `params`."""
    if ty[0] == "tuple":
        return ir.Tuple([_variables_of(part, params) for part in ty[1:]])
    params.append(ir.Var(f"v{len(params)}", TensorType(*ty)))
    return params[-1]


def _parts(expr: ir.Expr, kind) -> list:
    """Return the tensors of an expression of a known type."""
    if not isinstance(kind, TupleType):
        return [expr]
    fields = (ir.TupleGetItem(expr, n) for n in range(len(kind.fields)))
    return [part for field, inner in zip(fields, kind.fields, strict=True) for part in _parts(field, inner)]


def _kind(ty):
    return tuple(map(_kind, ty.fields)) if isinstance(ty, TupleType) else None


def _rebuilt(kind, tensors):
    return next(tensors) if kind is None else tuple(_rebuilt(part, tensors) for part in kind)
