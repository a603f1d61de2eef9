"""Add long sums in blocks, so that their error grows with the logarithm of their length.

A float32 accumulator that has reached 2^24 takes no more ones, and long before that each addend loses digits.
Here an accumulator takes only so many addends one after another. A longer loop becomes one over blocks:

    for k in range(n): c[i] += x[k]        for block in range(n // 64):
                                               part[0] = 0
                                               for k in range(64): part[0] += x[block * 64 + k]
                                               c[i] += part[0]

and the loop over blocks is treated likewise. A register tile of accumulators has a tile of parts; a single
accumulator of neighbours in memory has a part for each lane of a register, so that the sum waits for memory
rather than for the addition before.

A sum that is all that a CPU's kernel waits for is shared by threads, in as many parts on every machine, so
that its result is the same on all; where its length is dynamic, the kernel chooses in each run.

The rewrite comes after the schedule, whatever made it, so that no workload changes, and leaves kernels with
short sums alone. A kernel's blocks tell what is a sum: their axes say what is reduced. Loops that are written
by hand stay as they are.
"""

import math
from typing import NamedTuple

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.s_tir import transform as s

from ...core.simd import simd_of

_LONGEST, _BLOCK = 256, 64  # addends of an accumulator, and of a block of a longer sum, at most
# Of products, which keep the arithmetic units busy: the work for a block is less than a hundredth of its own.
# Not where all is one sum, as of a weighted loss: that waits for memory.
_LONGEST_OF_PRODUCTS, _BLOCK_OF_PRODUCTS = 4096, 512
_SHARED, _PARTS = 1 << 17, 64  # addends of a sum that threads share, at least, and its parts
_ENDLESS = 1 << 31  # addends; TVM 0.27's RemoveNoOp fails on blocks of so many
_ON_STACK = 1024  # elements of a local buffer, at most
_VECTORS = 4  # of a sum that is worth a part for each lane, at least
_WHOLE = ("float32", "float64", "int32", "int8", "uint8")  # what is read as vectors
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_SERIAL, _VECTORIZED = tirx.ForKind.SERIAL, tirx.ForKind.VECTORIZED
_MARK = "pragma_long_sum"  # on a block, and then around its statements: the number of its sum
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
            marked, sums = _marked(func) if isinstance(func, tirx.PrimFunc) else (func, [])
            if not sums:
                continue
            lowered, target = lower(tvm.IRModule({var: marked}))[var], func.attrs["target"]
            # Inside of a vectorized loop, a part would be one number for all lanes.
            of_lanes = [loop for loop in _all(lowered.body, tirx.For) if loop.kind == _VECTORIZED]
            inside = {each.loop_var for loop in of_lanes for each in _all(loop.body, tirx.For)}
            sums = [(variables - inside, most) for variables, most in sums]
            cutter = _Cutter(sums, simd_of(target).lanes if target.kind.name == "llvm" else None)
            cutter.alone = _alone(lowered.body) if cutter.lanes else set()
            body = tvm_ffi.structural_map(lowered.body, (tirx.For, cutter.share))
            body = tvm_ffi.structural_map(body, (tirx.For, cutter.cut))
            if not body.same_as(lowered.body):
                unmarked = tirx.AttrStmt, lambda node: node.body if node.attr_key == _MARK else node
                body = tvm_ffi.structural_map(body, unmarked)
                rewritten = tvm.IRModule({var: lowered.with_body(body)})
                mod = mod.clone()
                mod.update_func(var, s.ConvertSSA()(rewritten)[var])  # loops and buffers are repeated
        return mod

    return run


# ---------------------------------------------------------------- what is a long sum


def _marked(func) -> tuple:
    """Mark the blocks of long sums; return the kernel, and for each its loops' variables and its limit."""
    loops, analyzer, sums = {}, tvm.sym.Analyzer(), []

    def enter(loop):
        loops[loop.loop_var] = loop
        analyzer.bind(loop.loop_var, tvm.ir.Range.from_min_extent(loop.min, loop.extent))

    def mark(realize):
        block, store, reduced, kept = realize.block, realize.block.body, set(), set()
        for axis, value in zip(block.iter_vars, realize.iter_values, strict=True):
            (reduced if axis.iter_type == tirx.IterVar.CommReduce else kept).update(_all(value, tirx.Var))
        if not isinstance(store, tirx.BufferStore) or not _adds(store.value, store):
            return realize
        own = [loops[var] for var in reduced - kept if var in loops]
        own = [loop for loop in own if loop.kind in (_SERIAL, tirx.ForKind.UNROLLED)]
        longest, most = _limits(store.value) if kept else (_LONGEST, _BLOCK)
        if math.prod(_most(loop.extent, analyzer) for loop in own) <= longest:
            return realize
        own = [loop for loop in own if loop.kind == _SERIAL]
        if math.prod(int(loop.extent) for loop in own if isinstance(loop.extent, tirx.IntImm)) >= _ENDLESS:
            return realize
        sums.append(({loop.loop_var for loop in own}, most))
        fields = "iter_vars", "reads", "writes", "name_hint", "body", "init", "alloc_buffers", "match_buffers"
        annotations = {**block.annotations, _MARK: len(sums) - 1}
        block = SBlock(*(getattr(block, name) for name in fields), annotations)
        return SBlockRealize(realize.iter_values, realize.predicate, block)

    tvm_ffi.structural_walk(func.body, (tirx.For, enter), order="pre")
    return func.with_body(tvm_ffi.structural_map(func.body, (SBlockRealize, mark))), sums


def _adds(value, store) -> bool:
    """Tell whether a value is that of the element which is stored, plus something else."""
    if isinstance(value, tirx.Select):
        return _adds(value.true_value, store) and _adds(value.false_value, store)
    if isinstance(value, tirx.Add):
        sides = (value.a, value.b), (value.b, value.a)
        return any(_adds(a, store) and store.buffer not in _buffers(b) for a, b in sides)
    own = tirx.BufferLoad(store.buffer, store.indices)
    return str(store.buffer.dtype) in _FLOATS and tvm_ffi.structural_equal(value, own)


def _limits(value) -> tuple[int, int]:
    """Return how many addends an accumulator takes at most, and how many a block has if there are more."""
    total = value.true_value if isinstance(value, tirx.Select) else value
    addends = (getattr(total, side, None) for side in "ab")
    if any(isinstance(x, tirx.Mul) and _is_of_two(x) for x in addends):
        return _LONGEST_OF_PRODUCTS, _BLOCK_OF_PRODUCTS
    return _LONGEST, _BLOCK


def _is_of_two(product) -> bool:
    """Tell whether a product is of two tensors' elements, rather than a square or a multiple."""
    return not isinstance(product.b, tirx.FloatImm) and not tvm_ffi.structural_equal(product.a, product.b)


def _most(extent, analyzer) -> float:
    """Return an upper bound of a loop's length."""
    most = analyzer.const_int_bound(extent).max_value
    return math.inf if most >= (1 << 31) - 1 else most


# ---------------------------------------------------------------- blocks


class _Sum(NamedTuple):
    """A statement in a loop that adds to an accumulator, at an index that the loop does not change."""

    store: tirx.BufferStore
    mark: tirx.AttrStmt  # what it is inside of
    tile: list  # the loops between on which the element depends, from the outermost in
    tests: list  # the conditions on that element under which the statement runs
    steps: int  # of the loop, for a block of addends

    def marked(self, statement):
        return tirx.AttrStmt(self.mark.node, _MARK, self.mark.value, statement)

    def on(self, part, index: list):
        """Return the statement for a part instead of the accumulator."""
        own, buffer = tirx.BufferLoad(part, index), self.store.buffer
        loads = tvm.ir.TensorLoad, lambda load: own if load.source.same_as(buffer) else load
        return tirx.BufferStore(part, tvm_ffi.structural_map(self.store.value, loads), index)

    def add(self, part, index: list):
        """Return the statement that adds a part to the accumulator."""
        buffer, at = self.store.buffer, self.store.indices
        total = tirx.BufferLoad(buffer, at) + tirx.BufferLoad(part, index)
        return self.marked(tirx.BufferStore(buffer, total, at))

    def of_tile(self, statement, tests: list = ()):
        for test in tests:
            statement = tirx.IfThenElse(test, statement, None)
        for loop in reversed(self.tile):
            statement = _of_length(loop, loop.extent, statement)
        return statement


class _Cutter:
    """Cuts loops of a kernel's long sums; `lanes` are those of a CPU's vector registers."""

    def __init__(self, long: list, lanes: int | None):
        self.long, self.lanes, self.analyzer = long, lanes, tvm.sym.Analyzer()
        self.alone: set[tirx.Var] = set()  # variables of loops that threads may share

    def share(self, loop):
        """Let threads add parts of a long sum; one of dynamic length does if it is long in a run."""
        is_alone = loop.loop_var in self.alone and loop.kind == _SERIAL and _is_plain(loop)
        sums, extent = self._sums(loop) if is_alone else [], loop.extent
        stores = {store.buffer for store in _all(loop.body, tirx.BufferStore)}
        inner = [each.extent for each in _all(loop.body, tirx.For)]
        is_static = all(isinstance(each, tirx.IntImm) for each in inner)
        if len(sums) != 1 or len(stores) > 1 or sums[0].tile or sums[0].tests or not is_static:
            return loop
        (one,), least = sums, max(_PARTS, -(-_SHARED // math.prod(map(int, inner))))
        if isinstance(extent, tirx.IntImm) and int(extent) < least:
            return loop
        number = tirx.Var("number", str(extent.ty.dtype))
        part = tirx.decl_buffer([_PARTS], str(one.store.buffer.dtype), "part", scope="global")
        each, more = tirx.floordiv(extent, _PARTS), tirx.floormod(extent, _PARTS)  # some take one more
        begin = number * each + tirx.min(number, more)
        own = tirx.BufferStore, lambda store: one.on(part, [number]) if store.same_as(one.store) else store
        body = _at(tvm_ffi.structural_map(loop.body, own), loop.loop_var, begin + loop.loop_var)
        size = each + tirx.min(tirx.max(more - number, 0), 1)
        body = tirx.SeqStmt([_zero(part, [number]), _of_length(loop, self.analyzer.simplify(size), body)])

        def of_parts(kind, statement):
            return tirx.For(number, loop.min, tirx.IntImm(str(extent.ty.dtype), _PARTS), kind, statement)

        added = of_parts(_SERIAL, one.add(part, [number]))
        shared = tirx.SeqStmt([tirx.AllocBuffer(part), of_parts(tirx.ForKind.PARALLEL, body), added])
        return shared if isinstance(extent, tirx.IntImm) else tirx.IfThenElse(extent >= least, shared, loop)

    def cut(self, loop, again: int = 1):
        """Cut a loop into blocks, and the loop over these too; one of dynamic length once more."""
        sums = self._sums(loop) if loop.kind == _SERIAL and _is_plain(loop) else []
        if not sums:
            return loop
        if self.lanes and len(sums) == 1 and (vectors := self._vectors(loop, sums[0])) is not None:
            return vectors
        extent, length = loop.extent, min(each.steps for each in sums)
        static = isinstance(extent, tirx.IntImm)
        if static and int(extent) <= length:
            return loop
        if static:
            length = next((n for n in range(length, length // 2, -1) if int(extent) % n == 0), length)
        block = tirx.Var(f"{loop.loop_var.name}_block", str(extent.ty.dtype))
        before, parts, after = [], {}, []
        for each in sums:
            self.long[int(each.mark.value)][0].add(block)
            shape, index = [n.extent for n in each.tile] or [1], [n.loop_var for n in each.tile] or [0]
            elements = math.prod(_most(size, self.analyzer) for size in shape)
            if elements > _ON_STACK and not self.lanes:
                return loop
            scope = "global" if elements > _ON_STACK else "local"
            part = tirx.decl_buffer(shape, str(each.store.buffer.dtype), "part", scope=scope)
            parts[each.store] = each.on(part, index)
            before += [tirx.AllocBuffer(part), each.of_tile(_zero(part, index))]
            after.append(each.of_tile(each.add(part, index), each.tests))
        body = tvm_ffi.structural_map(loop.body, (tirx.BufferStore, lambda store: parts.get(store, store)))
        body = _at(body, loop.loop_var, block * length + loop.loop_var)
        inner = _of_length(loop, tirx.min(extent - block * length, length), body)
        count = tirx.floordiv(extent + (length - 1), length)
        outer = tirx.For(block, loop.min, count, loop.kind, tirx.SeqStmt([*before, inner, *after]))
        return self.cut(outer, again - 1) if static or again else outer

    def _sums(self, loop) -> list[_Sum]:
        """List the long sums over a loop whose accumulators nothing else uses inside of it."""
        marks, sums = [node for node in _all(loop.body, tirx.AttrStmt) if node.attr_key == _MARK], []
        for mark in marks:
            variables, most = self.long[int(mark.value)]
            own = [node for node in marks if int(node.value) == int(mark.value)]
            for store in _all(mark, tirx.BufferStore) if loop.loop_var in variables else ():
                uses = [_all(node, tirx.Var).count(store.buffer) for node in (loop.body, *own)]
                if store.buffer in _buffers(store.value) and uses[0] == sum(uses[1:]):
                    sums.append(_sum(loop, mark, store, most))
        return [each for each in sums if each]

    def _vectors(self, loop, one: _Sum):
        """Return a sum of neighbours in memory as one of vectors, and of what is left; None if it is not."""
        k, extent, lanes, dtype = loop.loop_var, loop.extent, self.lanes, str(loop.extent.ty.dtype)
        *starts, last = one.mark.body.seq if isinstance(one.mark.body, tirx.SeqStmt) else [one.mark.body]
        only = loop.body.same_as(one.mark) and last.same_as(one.store)
        if not only or not all(isinstance(each, tirx.IfThenElse) for each in starts):
            return None
        if isinstance(extent, tirx.IntImm) and int(extent) < _VECTORS * lanes:
            return None
        if any("if_then_else" in str(call.op) for call in _all(last.value, tvm.ir.Call)):
            return None
        for load in _all(last.value, tvm.ir.TensorLoad):
            steps = [self.analyzer.simplify(_at(index, k, k + 1) - index) for index in load.indices]
            steps = [int(step) if isinstance(step, tirx.IntImm) else -1 for step in steps]
            if str(load.source.dtype) not in _WHOLE or any(steps[:-1]) or steps[-1:] not in ([], [0], [1]):
                return None
        part = tirx.decl_buffer([lanes], str(one.store.buffer.dtype), "lanes", scope="local")
        lane, whole = tirx.Var("lane", dtype), tirx.floordiv(extent, lanes)

        def of_lanes(width: int, statement):
            return tirx.For(lane, loop.min, tirx.IntImm(dtype, width), _VECTORIZED, statement)

        added = one.marked(_at(one.on(part, [lane]), k, k * lanes + lane))
        left, rest = extent - whole * lanes, one.marked(_at(one.store, k, whole * lanes + k))
        steps = [one.marked(_at(start, k, loop.min)) for start in starts]
        steps += [tirx.AllocBuffer(part), of_lanes(lanes, _zero(part, [lane]))]
        steps.append(self.cut(_of_length(loop, whole, of_lanes(lanes, added))))
        while lanes := lanes // 2:
            half = tirx.BufferLoad(part, [lane]) + tirx.BufferLoad(part, [lane + lanes])
            steps.append(of_lanes(lanes, tirx.BufferStore(part, half, [lane])))
        steps.append(one.add(part, [0]))
        if not isinstance(left, tirx.IntImm) or int(left):
            steps.append(_of_length(loop, left, rest))
        return tirx.SeqStmt(steps)


def _sum(loop, mark, store, most: int) -> _Sum | None:
    """Describe a sum in a loop; None if its parts are not as many as its elements, or not known before."""
    loops, branches = (
        [node for node in reversed(_all(loop.body, kind)) if store in _all(node, tirx.BufferStore)]
        for kind in (tirx.For, tirx.IfThenElse)
    )
    bound = {node.loop_var for node in (loop, *_all(loop.body, tirx.For))}
    bound |= {node.var for node in _all(loop.body, tirx.Bind)}
    used = bound & {var for index in store.indices for var in _all(index, tirx.Var)}
    tile, tests = [each for each in loops if each.loop_var in used], []
    for test in (part for branch in branches for part in _conjuncts(branch.condition)):
        inside = bound.intersection(_all(test, tirx.Var))
        if inside <= used:
            tests.append(test)
        elif inside & used:
            return None
    fixed = not any(_buffers(test) for test in tests) and all(branch.else_case is None for branch in branches)
    plain = all(_is_plain(each) and not bound.intersection(_all(each.extent, tirx.Var)) for each in tile)
    if not fixed or not plain or used != {each.loop_var for each in tile}:
        return None
    adds = (each.extent for each in loops if each not in tile and isinstance(each.extent, tirx.IntImm))
    return _Sum(store, mark, tile, tests, max(1, most // math.prod(map(int, adds))))


def _alone(body) -> set:
    """Return the variables of the loops that no loop is around, but serial ones with few iterations."""
    loops = _all(body, tirx.For)
    inside = {each.loop_var for loop in loops for each in _all(loop.body, tirx.For)}
    found = set()
    for loop in loops:
        if loop.loop_var not in inside:
            few = isinstance(loop.extent, tirx.IntImm) and int(loop.extent) < _PARTS and loop.kind == _SERIAL
            found |= _alone(loop.body) if few else {loop.loop_var}
    return found


def _is_plain(loop) -> bool:
    kinds = _SERIAL, tirx.ForKind.UNROLLED, _VECTORIZED
    return loop.kind in kinds and isinstance(loop.min, tirx.IntImm) and int(loop.min) == 0


def _conjuncts(test) -> list:
    return [*_conjuncts(test.a), *_conjuncts(test.b)] if isinstance(test, tirx.And) else [test]


def _all(node, kind) -> list:
    """List the nodes of a kind, inner ones first; buffers are variables."""
    found = []
    tvm_ffi.structural_walk(node, (kind, found.append))
    return found


def _buffers(expr) -> list:
    return [load.source for load in _all(expr, tvm.ir.TensorLoad)]


def _of_length(loop, extent, body):
    return tirx.For(loop.loop_var, loop.min, extent, loop.kind, body, None, loop.annotations)


def _zero(buffer, index: list):
    return tirx.BufferStore(buffer, tirx.FloatImm(str(buffer.dtype), 0.0), index)


def _at(node, var, value):
    """Replace a variable."""
    return tvm_ffi.structural_map(node, (tirx.Var, lambda each: value if each.same_as(var) else each))
