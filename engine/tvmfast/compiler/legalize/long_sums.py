"""Add long sums in blocks, so that their error grows with the logarithm of their length.

A float32 accumulator that has reached 2^24 takes no more ones, and long before that each addend loses digits.
Here an accumulator takes only so many addends one after another. A longer loop becomes one over blocks:

    for k in range(n): c[i] += x[k]        for block in range(n // 64):
                                               part[0] = 0
                                               for k in range(64): part[0] += x[block * 64 + k]
                                               c[i] += part[0]

and the loop over blocks is treated likewise. A register tile of accumulators has a tile of parts; a single
accumulator of neighbours in memory has a part for each lane of a register, so that the sum waits for memory
rather than for the addition before. Loops of dynamic length test which of the two forms to run.

The rewrite is the same for all kernels, scheduled by a rule, by a search or not at all, on CPUs and GPUs. It
comes after the schedule, so that no workload changes, and leaves kernels with short sums alone.
"""

import math
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm.s_tir import transform as s

from ...core.simd import simd_of

_LONGEST, _BLOCK = 256, 64  # addends of an accumulator, and of a block of a longer sum, at most
# Of products, which keep the arithmetic units busy: the work for a block is less than a hundredth of its own.
_LONGEST_OF_PRODUCTS, _BLOCK_OF_PRODUCTS = 4096, 512
_ON_STACK = 1024  # elements of a CPU's local buffer, at most
_VECTORS = 4  # of a sum that is worth a part for each lane, at least
_WHOLE = ("float32", "float64", "int32", "int8", "uint8")  # what is read as vectors
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_OF_BLOCKS = [  # TVM's passes that turn blocks into loops, as they come in its pipeline "s_tir"
    s.CanonicalizeLoop, s.LowerCrossThreadReduction, s.LowerInitBlock,
    s.PlanAndUpdateBufferAllocationLocation, s.ConvertBlocksToOpaque, s.LiftThreadBinding,
    s.ManifestSharedMemoryLocalStage, s.CompactBufferAllocation, s.LowerAutoCopy, s.UnifyThreadBinding,
    s.LowerMatchBuffer, s.StmtSimplify, s.InjectPermutedLayout, s.AnnotateIrregularLoop,
    s.InjectSoftwarePipeline, s.TransformMmaBufferLayout, s.LowerOpaqueBlock,
]  # fmt: skip


def add_in_blocks() -> tvm.transform.Pass:
    """Make the pass, for the beginning of a kernel's lowering; a kernel that it changes has no blocks."""
    lower = tvm.transform.Sequential([each() for each in _OF_BLOCKS])

    @tvm.transform.module_pass(opt_level=0, name="AddInBlocks")
    def run(mod, _context):
        for var, func in mod.functions_items():
            if not isinstance(func, tirx.PrimFunc) or not _may_be_long(func):
                continue
            lowered = lower(tvm.IRModule({var: func}))[var]
            target = func.attrs["target"]
            lanes = simd_of(target).lanes if target.kind.name == "llvm" else None
            body = _Rewriter(lowered.body, lanes).body
            if not body.same_as(lowered.body):
                rewritten = tvm.IRModule({var: lowered.with_body(body)})
                mod = mod.clone()
                mod.update_func(var, s.ConvertSSA()(rewritten)[var])  # loops and buffers are repeated
        return mod

    return run


def _may_be_long(func) -> bool:
    """Tell whether a kernel has a reduction over many elements, or loops that are not in blocks."""
    analyzer, found = tvm.sym.Analyzer(), []

    def visit(block):
        axes = [axis.dom.extent for axis in block.iter_vars if axis.iter_type == tirx.IterVar.CommReduce]
        longest = _limits(block.body)[0] if isinstance(block.body, tirx.BufferStore) else _LONGEST
        long = math.prod(_most(extent, analyzer) for extent in axes) > longest
        by_hand = not axes and block.name_hint != "root" and not isinstance(block.body, tirx.BufferStore)
        found.append(long or by_hand)

    tvm_ffi.structural_walk(func.body, (SBlock, visit))
    return any(found) or not found


def _most(extent, analyzer) -> float:
    """Return an upper bound of a loop's length."""
    most = analyzer.const_int_bound(extent).max_value
    return math.inf if most >= (1 << 31) - 1 else most


# ---------------------------------------------------------------- sums in a loop


@dataclass
class _Sum:
    """A statement inside a loop that adds to an accumulator, at an index that the loop does not change.

    Attributes:
        store: The statement.
        inside: The loops between the two that add to the same element.
        tile: Those on which the element depends, from the outermost in.
        tests: The conditions on that element under which the statement runs.
    """

    store: tirx.BufferStore
    inside: list
    tile: list
    tests: list


def _sums(loop) -> list[_Sum]:
    """List the sums of a loop whose accumulators nothing else reads or writes inside of it."""
    found, others = [], set()  # buffers that are used otherwise

    def visit(node, path):
        if isinstance(node, tirx.SeqStmt):
            for each in node.seq:
                visit(each, path)
        elif isinstance(node, tirx.For):
            others.update(_buffers(node.extent))
            visit(node.body, [*path, node])
        elif isinstance(node, tirx.IfThenElse):
            others.update(_buffers(node.condition))
            visit(node.then_case, [*path, node])
            if node.else_case is not None:
                visit(node.else_case, [*path, None])
        elif isinstance(node, tirx.AttrStmt):
            others.update(_buffers(node.value))
            visit(node.body, [*path, node])
        elif isinstance(node, tirx.BufferStore):
            own, value = node.buffer, node.value
            if _adds(value, node):
                found.append((node, path))
                others.update(buffer for buffer in _buffers(value) if not buffer.same_as(own))
            else:
                others.update(_buffers(value))
                if not _starts(node, path, loop):
                    others.add(own)
            others.update(buffer for index in node.indices for buffer in _buffers(index))
        elif not isinstance(node, tirx.AllocBuffer):
            others.update(_vars(node))

    visit(loop.body, [])
    bound = _bound(loop)
    sums = (_sum(store, path, bound) for store, path in found if store.buffer not in others)
    return [each for each in sums if each]


def _sum(store, path, bound: set) -> _Sum | None:
    """Describe a sum in a loop; None if its parts are not as many as its elements, or not known before."""
    used = {var for index in store.indices for var in _vars(index)}
    loops = [node for node in path if isinstance(node, tirx.For)]
    tile = [each for each in loops if each.loop_var in used]
    of_tile = {each.loop_var for each in tile}
    if used & bound != of_tile or any(_buffers(index) for index in store.indices):
        return None
    if not all(map(_is_plain, tile)) or any(bound & set(_vars(each.extent)) for each in tile):
        return None
    tests = []
    for node in path:
        if isinstance(node, tirx.IfThenElse):
            for test in _conjuncts(node.condition):
                others = bound & set(_vars(test)) - of_tile
                if others and of_tile & set(_vars(test)):
                    return None
                if not others:
                    tests.append(test)
        elif not isinstance(node, tirx.For | tirx.AttrStmt):  # an else
            return None
    if any(map(_buffers, tests)):
        return None
    return _Sum(store, [each for each in loops if each.loop_var not in used], tile, tests)


def _bound(loop) -> set:
    """Return the variables that a loop defines, its own and those inside of it."""
    found = {loop.loop_var}
    definitions = [
        (tirx.For, lambda node: found.add(node.loop_var)),
        ((tirx.Bind, tirx.Let), lambda node: found.add(node.var)),
        (tirx.IterVar, lambda axis: found.add(axis.var)),
    ]
    tvm_ffi.structural_walk(loop.body, definitions)
    return found


def _is_plain(loop) -> bool:
    kinds = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)
    return loop.kind in kinds and isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0


def _adds(value, store) -> bool:
    """Tell whether a value is that of the element which is stored, plus something else."""
    buffer = store.buffer
    if str(buffer.dtype) not in _FLOATS:
        return False
    if isinstance(value, tvm.ir.TensorLoad):
        same = zip(value.indices, store.indices, strict=True)
        return value.source.same_as(buffer) and all(tvm_ffi.structural_equal(a, b) for a, b in same)
    if isinstance(value, tirx.Add):
        return any(
            _adds(a, store) and buffer not in _buffers(b) for a, b in ((value.a, value.b), (value.b, value.a))
        )
    if isinstance(value, tirx.Sub):
        return _adds(value.a, store) and buffer not in _buffers(value.b)
    if isinstance(value, tirx.Select):
        both = _adds(value.true_value, store) and _adds(value.false_value, store)
        return both and buffer not in _buffers(value.condition)
    if isinstance(value, tirx.Let):
        return _adds(value.body, store) and buffer not in _buffers(value.value)
    return False


def _starts(store, path, loop) -> bool:
    """Tell whether a statement starts a sum in the loop's first iteration."""
    first = (node.condition for node in path if isinstance(node, tirx.IfThenElse))
    return isinstance(store.value, tirx.FloatImm) and any(loop.loop_var in _vars(test) for test in first)


def _conjuncts(test) -> list:
    if isinstance(test, tirx.And):
        return [*_conjuncts(test.a), *_conjuncts(test.b)]
    return [test]


def _buffers(expr) -> list:
    """List the buffers that an expression reads."""
    found = []
    tvm_ffi.structural_walk(expr, (tvm.ir.TensorLoad, lambda load: found.append(load.source)))
    return found


def _vars(node) -> list:
    """List the variables of an expression or a statement, and its buffers."""
    found = []
    tvm_ffi.structural_walk(node, (tirx.Var, found.append))
    return found


# ---------------------------------------------------------------- blocks


class _Rewriter:
    """Rewrites a kernel; `body` is the result.

    Attributes:
        lanes: Of a CPU's vector registers.
        long: The accumulators of long sums, and the addends of a block of each.
        lengths: By the variable of its outermost loop, the lengths of the loops of a sum, if any is dynamic.
    """

    def __init__(self, body, lanes: int | None):
        self.lanes, self.long, self.lengths = lanes, {}, {}
        self.analyzer = tvm.sym.Analyzer()
        self._measure(body, set())
        self.body = self._visit(body) if self.long else body

    def _measure(self, node, seen: set) -> None:
        """Note the accumulators of long sums, each at its outermost loop."""
        if isinstance(node, tirx.For) and _is_cut(node):
            sums = [each for each in _sums(node) if each.store not in seen]
            for each in sums:
                lengths = [node.extent, *(loop.extent for loop in each.inside)]
                longest, block = _limits(each.store)
                if math.prod(_most(length, self.analyzer) for length in lengths) > longest:
                    self.long[each.store.buffer] = block
                    if not all(isinstance(length, tirx.IntImm) for length in lengths):
                        self.lengths[node.loop_var] = longest, [each.astype("int64") for each in lengths]
            seen = seen | {each.store for each in sums}
        for child in _children(node):
            self._measure(child, seen)

    def _visit(self, node):
        if isinstance(node, tirx.SeqStmt):
            return _seq([self._visit(each) for each in node.seq], node)
        if isinstance(node, tirx.IfThenElse):
            cases = [each if each is None else self._visit(each) for each in (node.then_case, node.else_case)]
            return tirx.IfThenElse(node.condition, *cases)
        if isinstance(node, tirx.AttrStmt):
            return tirx.AttrStmt(node.node, node.attr_key, node.value, self._visit(node.body))
        if not isinstance(node, tirx.For):
            return node
        loop = _changed(node, node.extent, self._visit(node.body))
        cut = self._cut(loop) if _is_cut(node) else loop
        longest, lengths = self.lengths.get(node.loop_var, (0, []))
        if not lengths or cut.same_as(loop) or any(_bound(node) & set(_vars(each)) for each in lengths):
            return cut
        return tirx.IfThenElse(math.prod(lengths) <= tirx.IntImm("int64", longest), node, cut)

    def _cut(self, loop, again: int = 1):
        """Cut a loop into blocks, and the loop over these too; one of dynamic length once more."""
        sums = [each for each in _sums(loop) if each.store.buffer in self.long]
        if not sums:
            return loop
        extent, dtype = loop.extent, str(loop.extent.ty.dtype)
        static = isinstance(extent, tirx.IntImm)
        if self.lanes and (vectors := self._vectors(loop, sums)) is not None:
            return vectors
        each = max(math.prod(map(_count, one.inside)) for one in sums)
        most = min(self.long[one.store.buffer] for one in sums)
        length = max(1, most // each)
        if static:
            if int(extent) <= length:
                return loop
            length = next((n for n in range(length, length // 2, -1) if int(extent) % n == 0), length)
        size = _integer(length, dtype)
        count = (
            _integer(-(-int(extent) // length), dtype)
            if static
            else tirx.floordiv(extent + (length - 1), size)
        )
        block = tirx.Var(f"{loop.loop_var.name}_block", dtype)
        first = block * size
        if not static or int(extent) % length:
            size = tirx.min(size, extent - first)
        parts = {one.store: self._part(one) for one in sums}
        body = tvm_ffi.structural_map(
            loop.body, (tirx.BufferStore, lambda store: _added_to(store, parts.get(store)))
        )
        body = _at(body, loop.loop_var, first + loop.loop_var)
        inner = tirx.For(loop.loop_var, loop.min, size, loop.kind, body, None, loop.annotations)
        steps = [
            *(tirx.AllocBuffer(part) for part, _ in parts.values()),
            *(_nest(one.tile, [], _zero(*parts[one.store])) for one in sums),
            inner,
            *(_nest(one.tile, one.tests, _add(one.store, *parts[one.store])) for one in sums),
        ]
        outer = tirx.For(block, _integer(0, dtype), count, tirx.ForKind.SERIAL, tirx.SeqStmt(steps))
        return self._cut(outer, again - 1) if static or again else outer

    def _vectors(self, loop, sums: list):
        """Return a sum of neighbours in memory as one of vectors, and of what is left; None if it is not."""
        (one, *others), extent, dtype = sums, loop.extent, str(loop.extent.ty.dtype)
        *starts, last = loop.body.seq if isinstance(loop.body, tirx.SeqStmt) else [loop.body]
        if others or not last.same_as(one.store) or not _are_vectors(last, loop.loop_var):
            return None
        if not all(isinstance(each, tirx.IfThenElse) for each in starts):
            return None
        if isinstance(extent, tirx.IntImm) and int(extent) < _VECTORS * self.lanes:
            return None
        lanes = _integer(self.lanes, dtype)
        whole = tirx.floordiv(extent, lanes)
        part = tirx.decl_buffer([self.lanes], str(last.buffer.dtype), "lanes", scope="local")
        self.long[part] = self.long[last.buffer]
        lane = tirx.Var("lane", "int32")

        def of_lanes(width: int, statement):
            return tirx.For(lane, 0, width, tirx.ForKind.VECTORIZED, statement)

        added = _at(
            _added_to(last, (part, [lane])), loop.loop_var, loop.loop_var * lanes + lane.astype(dtype)
        )
        vectors = tirx.For(loop.loop_var, loop.min, whole, loop.kind, of_lanes(self.lanes, added))
        steps = [_at(each, loop.loop_var, _integer(0, dtype)) for each in starts]
        steps += [tirx.AllocBuffer(part), of_lanes(self.lanes, _zero(part, [lane])), self._cut(vectors)]
        width = self.lanes // 2
        while width:
            half = tirx.BufferLoad(part, [lane]) + tirx.BufferLoad(part, [lane + width])
            steps.append(of_lanes(width, tirx.BufferStore(part, half, [lane])))
            width //= 2
        steps.append(_add(last, part, [0]))
        if not isinstance(extent, tirx.IntImm) or int(extent) % self.lanes:
            rest = _at(last, loop.loop_var, whole * lanes + loop.loop_var)
            steps.append(tirx.For(loop.loop_var, loop.min, extent - whole * lanes, loop.kind, rest))
        return tirx.SeqStmt(steps)

    def _part(self, one: _Sum) -> tuple:
        """Return a buffer for the parts of a sum's accumulators, and the index of one."""
        shape = [loop.extent for loop in one.tile] or [1]
        elements = math.prod(_most(loop.extent, self.analyzer) for loop in one.tile)
        scope = "global" if self.lanes and elements > _ON_STACK else "local"
        part = tirx.decl_buffer(shape, str(one.store.buffer.dtype), "part", scope=scope)
        return part, [loop.loop_var for loop in one.tile] or [0]


def _is_cut(loop) -> bool:
    return loop.kind == tirx.ForKind.SERIAL and isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0


def _limits(store) -> tuple[int, int]:
    """Return how many addends an accumulator takes at most, and how many a block has if there are more."""
    added = [
        each for each in (getattr(store.value, side, None) for side in "ab") if isinstance(each, tirx.Mul)
    ]
    if any(not tvm_ffi.structural_equal(each.a, each.b) for each in added):
        return _LONGEST_OF_PRODUCTS, _BLOCK_OF_PRODUCTS
    return _LONGEST, _BLOCK


def _are_vectors(store, var) -> bool:
    """Tell whether what is added for neighbouring values of a variable lies side by side in memory."""
    if not isinstance(store, tirx.BufferStore):
        return False
    found, calls = [], []
    visits = [
        (tvm.ir.TensorLoad, found.append),
        (tvm.ir.Call, lambda call: calls.append(str(getattr(call.op, "name", "")))),
    ]
    tvm_ffi.structural_walk(store.value, visits)
    if any("if_then_else" in name for name in calls):
        return False
    for load in found:
        *outer, last = load.indices or [_integer(0, "int32")]
        step = tvm.sym.detect_linear_equation(last, [var])
        known = len(step) == 2 and isinstance(step[0], tirx.IntImm) and int(step[0]) in (0, 1)
        if str(load.source.dtype) not in _WHOLE or not known or any(var in _vars(each) for each in outer):
            return False
    return True


def _count(loop) -> int:
    """Return how often a loop adds to a sum; if its length is dynamic, it has been cut into blocks."""
    return int(loop.extent) if isinstance(loop.extent, tirx.IntImm) else 1


def _children(node) -> list:
    if isinstance(node, tirx.SeqStmt):
        return list(node.seq)
    if isinstance(node, tirx.IfThenElse):
        return [each for each in (node.then_case, node.else_case) if each is not None]
    body = getattr(node, "body", None)
    return [body] if isinstance(body, tirx.Stmt) else []


def _changed(loop, extent, body):
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body, loop.thread_binding, loop.annotations)


def _seq(statements: list, node):
    changed = any(not new.same_as(old) for new, old in zip(statements, node.seq, strict=True))
    return tirx.SeqStmt(statements) if changed else node


def _added_to(store, part):
    """Return a statement that adds to the part of a sum instead."""
    if part is None:
        return store
    buffer, index = part
    own = tirx.BufferLoad(buffer, index)
    value = tvm_ffi.structural_map(
        store.value,
        (tvm.ir.TensorLoad, lambda load: own if load.source.same_as(store.buffer) else load),
    )
    return tirx.BufferStore(buffer, value, index)


def _nest(tile: list, tests: list, statement):
    """Run a statement for each element of a tile, under these conditions."""
    for test in tests:
        statement = tirx.IfThenElse(test, statement, None)
    for loop in reversed(tile):
        statement = _changed(loop, loop.extent, statement)
    return statement


def _zero(buffer, index: list):
    return tirx.BufferStore(buffer, tirx.FloatImm(str(buffer.dtype), 0.0), index)


def _add(store, part, index: list):
    """Add a part to the accumulator that a statement adds to."""
    total = tirx.BufferLoad(store.buffer, store.indices) + tirx.BufferLoad(part, index)
    return tirx.BufferStore(store.buffer, total, store.indices)


def _at(node, var, value):
    """Replace a variable."""
    return tvm_ffi.structural_map(node, (tirx.Var, lambda each: value if each.same_as(var) else each))


def _integer(number: int, dtype: str):
    return tirx.IntImm(dtype, number)
