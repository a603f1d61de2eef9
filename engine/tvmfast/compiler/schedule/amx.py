"""Products by the tiles of AMX: what its instructions multiply, how rules use them, and the code for them.

AMX has eight tile registers of up to 16 rows of 64 bytes. An instruction adds, to each sum of a tile, the
products of a row of a second, which has 64 bytes of channels of one pixel or row, by a column of a third, the
weights of an output channel. A register tile here is a block of up to four tiles of sums: `across` times
`down` tiles of `rows` pixels, times `blocks` of 16 output channels. Intel, "Intel Architecture Instruction
Set Extensions Programming Reference", chapter 3.

A rule schedules a product whose innermost loops, of one register tile and one row of channels, become blocks
of their own (`tile_loops`). As such the kernel still is one that any CPU computes, and its costs are counted;
`use_tiles` puts the instructions in their place when it is lowered, and `configure_tiles` has each task load
the tiles' shapes, once. Linux gives a process these registers when it asks: a kernel asks in its first call,
and raises an error where that is refused, as the CPU's answer would be a signal that ends the process.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import PointerType, PrimType
from tvm.s_tir import MatchBufferRegion, SBlock, Schedule

from ...core import machine
from ...core.relax import ceildiv, round_up
from . import pairs
from .dot import Dot
from .epilogue import depth_of, fuse_epilogue, parallel

ROWS = 16  # of a tile, at most; also the output channels of a block
_REGISTERS = 8
_ROW = 64  # bytes of a row
_FEW = 4  # rows or pixels, for which vectors do as well


@dataclass(frozen=True)
class Instruction:
    """An instruction that multiplies tiles.

    Attributes:
        data: The dtype of the elements of a row of data, of which there are `depth`.
        sums: The dtype of the sums.
        weights: How `terms` neighbouring elements of each output channel are packed.
        multiply: Returns the product of an element of the data and one of the weights.
    """

    data: str
    sums: str
    weights: Dot
    multiply: Callable

    @property
    def terms(self) -> int:
        """The elements of a row that are added to one sum at a time."""
        return self.weights.terms

    @property
    def depth(self) -> int:
        """The elements of a row."""
        return ROWS * self.terms

    @property
    def channels(self) -> int:
        """The channels of a row."""
        return self.depth if self.terms > 1 else 2 * self.depth


def _integers(a, b):
    return a.astype("int32") * b.astype("int32")


INSTRUCTIONS = {  # the second one's elements are pairs of bfloat16, see pairs.py
    "tdpbusd": Instruction("uint8", "int32", Dot("tdpbusd", "uint8", "int8", 4), _integers),
    "tdpbf16ps": Instruction("int32", "float32", Dot("tdpbf16ps", "int32", "int32", 1), pairs.dot),
}


@dataclass(frozen=True)
class Tile:
    """A register tile.

    Attributes:
        instruction: A key of `INSTRUCTIONS`.
        rows: Pixels, or rows of a matrix, in a tile.
        across: Tiles of pixels that lie beside each other.
        down: Tiles of pixels one below the other, in neighbouring rows of an image.
        blocks: Blocks of 16 output channels.
        strides: Between pixels, down and across.
        image: Whether the sums have an axis of rows of an image, behind that of the blocks.
    """

    instruction: str
    rows: int
    across: int
    down: int
    blocks: int
    strides: tuple[int, int] = (1, 1)
    image: bool = False

    @property
    def pixels(self) -> list[tuple[int, int]]:
        """The first pixel of each tile: its row, and its column."""
        return [(y, x * self.rows) for y in range(self.down) for x in range(self.across)]

    @property
    def sums(self) -> int:
        """The number of tiles of sums."""
        return self.across * self.down * self.blocks

    def configuration(self) -> list[int]:
        """Return the shapes of the registers as 16 words: those of sums, of weights, of data."""
        given = self.sums, self.blocks, _REGISTERS - self.sums - self.blocks
        rows = np.repeat((self.rows, ROWS, self.rows), given)
        content = np.zeros(64, "uint8")
        content[0] = 1  # the palette
        content[16 : 16 + 2 * _REGISTERS].view("uint16")[:] = _ROW
        content[48 : 48 + _REGISTERS] = rows
        return [int(word) for word in content.view("int32")]


def suits(instructions: tuple[str, ...], instruction: str, rows: int, channels: int) -> bool:
    """Tell whether a CPU has an instruction, and a product rows and input channels enough to gain by it."""
    return instruction in instructions and rows >= _FEW and 2 * channels > INSTRUCTIONS[instruction].channels


def tile_of(height: int, width: int, blocks: int) -> dict[str, int]:
    """Choose the register tile, as fields of `Tile`, for an image of pixels times blocks of 16 channels.

    Two by two tiles load as many as they multiply. All rows of a line have the same tiles, of rows of equal
    length; where that is an odd number of tiles, two rows share a register tile.
    """
    count, across, down = ceildiv(width, ROWS), 2, 1
    if height > 1 and count % 2:
        across, down = 1, 2
    elif count == 1:
        across = 1
    rows = ceildiv(width, round_up(count, across))
    most = 2 if across * down > 1 else 3
    return {"rows": rows, "across": across, "down": down, "blocks": min(blocks, most)}


# ---------------------------------------------------------------- in a schedule

_NOTE = "tvmfast.tile"  # of a block: what it does, and the tile
_PARTS = ("clear", "multiply", "store")


def tile_loops(
    sch: Schedule,
    name: str,
    outer: list,
    around,
    reduced,
    inner,
    tile: Tile,
    stages: tuple[str, ...] = (),
    line: bool = False,
) -> None:
    """Have the loops inside of `around` computed by tiles, and the epilogue fused at its end.

    Args:
        sch: The schedule of the kernel.
        name: The block of the reduction, of (…, blocks of channels, pixels, 16 channels); its operands are
            the data (…, pixels, elements), which lie in memory as rows of tiles, and the weights (blocks of
            channels, …, 16, 16, terms).
        outer: The loops that threads share, fused.
        around: The loop around those of the reduction.
        reduced: The outermost loop of the reduction.
        inner: The outermost loop of a register tile.
        tile: The register tile.
        stages: As in `fuse_epilogue`.
        line: As in `fuse_epilogue`.
    """
    store = sch.cache_write(name, 0, "local")
    sch.reverse_compute_at(store, around)
    fuse_epilogue(sch, sch.get(store).name_hint, around, (*stages, name), line)
    parallel(sch, outer)
    clear = sch.decompose_reduction(name, reduced)
    begin = depth_of(sch, name + "_update", reduced) - 1
    roots = sch.get_loops(clear)[begin], inner, sch.get_loops(store)[begin]
    for part, root in zip(_PARTS, roots, strict=True):
        note = json.dumps([part, dataclasses.asdict(tile)])
        sch.annotate(sch.blockize(root), _NOTE, note)


# ---------------------------------------------------------------- when a kernel is lowered

_CONFIGURATION = "tvmfast.tiles"  # of a function: the words of `Tile.configuration`


def use_tiles() -> tvm.transform.Pass:
    """Make the pass that puts the instructions in the place of blocks that `tile_loops` made."""

    @tirx.transform.prim_func_pass(opt_level=0, name="UseTiles")
    def run(func, _mod, _context):
        tiles, held = [], []

        def replaced(block):
            if _NOTE not in block.annotations:
                return block
            part, given = json.loads(str(block.annotations[_NOTE]))
            tiles.append(Tile(**given))
            result, sums = _WITH_TILES[part](block, tiles[-1])
            held.extend(sums)
            return result

        def without_sums(block):  # which are in registers
            kept = [each for each in block.alloc_buffers if not any(each.same_as(other) for other in held)]
            if len(kept) == len(block.alloc_buffers):
                return block
            begin = block.iter_vars, block.reads, block.writes, block.name_hint, block.body, block.init
            return SBlock(*begin, kept, block.match_buffers, block.annotations)

        body = tvm_ffi.structural_map(func.body, (SBlock, replaced))
        if not tiles:
            return func
        body = tvm_ffi.structural_map(body, (SBlock, without_sums))
        return func.with_body(body).with_attr(_CONFIGURATION, tiles[0].configuration())

    return run


def _do(name: str, *args) -> tirx.Evaluate:
    """Return an instruction of which plain numbers are the tiles."""
    given = (tirx.const(arg, "int8") if isinstance(arg, int) else arg for arg in args)
    return tirx.Evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}", *given))


def instruction(name: str, *args) -> tvm.ir.Call:
    """Return the call of an instruction, of which plain numbers are the tiles."""
    return _do(name, *args).value


def configured(func: tirx.PrimFunc, tile: Tile) -> tirx.PrimFunc:
    """Return a kernel with such calls, which `configure_tiles` makes load the shapes of a register tile."""
    return func.with_attr(_CONFIGURATION, tile.configuration())


def _block(block: SBlock, body: list, reads: list, writes: list, matched=()) -> SBlock:
    own = tirx.SeqStmt(body) if len(body) > 1 else body[0]
    return SBlock(block.iter_vars, reads, writes, block.name_hint, own, None, [], [*matched])


def _clear(block, tile: Tile):
    body = [_do("tilezero", register) for register in range(tile.sums)]
    return _block(block, body, [], []), [block.writes[0].source]


def _multiply(block, tile: Tile):
    (sums,) = block.writes
    data, weights = (each for each in block.reads if not each.source.same_as(sums.source))
    down, across = tile.strides
    free = _REGISTERS - tile.sums - tile.blocks  # registers for data
    stride = across * int(data.source.shape[-1]) * tvm.DataType(str(data.source.dtype)).bits // 8
    body = []
    for n in range(tile.blocks):
        body.append(_load(tile.sums + n, weights, {0: n}, _ROW))
    for m, (y, x) in enumerate(tile.pixels):
        register = tile.sums + tile.blocks + m % free
        body.append(_load(register, data, {-3: y * down, -2: x * across}, stride))
        for n in range(tile.blocks):
            body.append(_do(tile.instruction, m * tile.blocks + n, register, tile.sums + n))
    return _block(block, body, [data, weights], []), []


def _load(register: int, region, offsets: dict[int, int], stride: int) -> tirx.Evaluate:
    """Return the load of a tile whose first element lies `offsets` behind that of a region, by axis."""
    index = [each.min for each in region.region]
    for axis, offset in offsets.items():
        if offset:
            index[axis] = index[axis] + offset
    address = tirx.address_of(tirx.BufferLoad(region.source, index))
    return _do("tileloadd64", register, address, _stride(stride))


def _store(block, tile: Tile):
    (target,) = block.writes
    shape, dtype = [each.extent for each in target.region], str(target.source.dtype)
    strides = [tirx.Var(f"stride{axis}", extent.ty) for axis, extent in enumerate(shape)]
    own = tirx.decl_buffer(
        shape, dtype, "sums", strides=strides, scope="local", offset_factor=1, layout=None
    )  # with its region, so that TVM allocates all that the tiles write
    body = []
    for m, (y, x) in enumerate(tile.pixels):
        for n in range(tile.blocks):
            index = [*[0] * (len(shape) - 3 - tile.image), n, *[y] * tile.image, x, 0]
            address = tirx.address_of(tirx.BufferLoad(own, index))
            body.append(_do("tilestored64", m * tile.blocks + n, address, _stride(_ROW)))
    matched = MatchBufferRegion(own, target)
    return _block(block, body, [], [target], [matched]), [block.reads[0].source]


def _stride(size: int):
    return tirx.const(size, "int64")


_WITH_TILES = {"clear": _clear, "multiply": _multiply, "store": _store}


def configure_tiles() -> tvm.transform.Pass:
    """Make the pass that has each task load the configuration, for kernels whose parallel loops are tasks."""

    @tirx.transform.prim_func_pass(opt_level=0, name="ConfigureTiles")
    def run(func, _mod, _context):
        if _CONFIGURATION not in (func.attrs or {}):
            return func
        words, tasks = [int(word) for word in func.attrs[_CONFIGURATION]], []

        def task(node):
            if node.attr_key != "pragma_parallel_launch_point" or not _has_tiles(node.body):
                return node
            tasks.append(node)
            return tirx.AttrStmt(node.node, node.attr_key, node.value, _configured(node.body, words))

        def kernel(node):
            if node.attr_key != "compute_scope":
                return node
            body = node.body if tasks else _configured(node.body, words)
            body = tirx.SeqStmt([_refused(), body])
            text = tvm.ir.StringImm(_ASK)
            body = tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", text, body)
            return tirx.AttrStmt(node.node, node.attr_key, node.value, body)

        body = tvm_ffi.structural_map(func.body, (tirx.AttrStmt, task))
        return func.with_body(tvm_ffi.structural_map(body, (tirx.AttrStmt, kernel)))

    return run


def name_of(call) -> str:
    """Return which of the instructions that have to do with tiles a call is; "" for another call."""
    if not call.op.same_as(_CALL):
        return ""
    return _numbers().get(int(call.args[0]), "")


_CALL = tvm.ir.Op.get("tirx.call_llvm_intrin")
_OTHERS = "ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tilestored64"


@functools.cache
def _numbers() -> dict[int, str]:
    calls = ((name, _do(name).value) for name in (*_OTHERS, *INSTRUCTIONS))
    return {int(call.args[0]): name for name, call in calls}


def _has_tiles(body) -> bool:
    found = []
    tvm_ffi.structural_walk(body, (tvm.ir.Call, lambda call: found.append(call) if name_of(call) else None))
    return bool(found)


def _configured(body, words: list[int]) -> tirx.Stmt:
    """Return a statement between the load of the configuration, from the stack, and its release.

    What it allocates, as the sums that the epilogue reads, it does once, not for each register tile.
    """
    held = []

    def hoisted(alloc):
        held.append(alloc)
        return tirx.Evaluate(tirx.const(0, "int32"))

    body = tvm_ffi.structural_map(body, (tirx.AllocBuffer, hoisted))
    pointer = tirx.Var("tiles", PointerType(PrimType("int32")))
    stack = tirx.call_intrin(pointer.ty, "tirx.tvm_stack_alloca", "shape", len(words) // 2)  # of 8 bytes
    buffer = tirx.decl_buffer((len(words),), "int32", "tiles", data=pointer)
    stores = [tirx.BufferStore(buffer, tirx.const(word, "int32"), [n]) for n, word in enumerate(words)]
    before = [*held, tirx.Bind(pointer, stack), tirx.DeclBuffer(buffer, data=pointer), *stores]
    return tirx.SeqStmt([*before, _do("ldtilecfg", pointer), body, _do("tilerelease")])


# ---- the permission

ALLOWED = "tvmfast_tiles_allowed"  # the function that tells
_QUESTION = f"i64 {machine.ARCH_PRCTL}, i64 {machine.REQUEST_STATE}, i64 {machine.TILES}"
# In LLVM's language, for a variable that outlives a call: 0 before the question, then 1 (yes) or 2 (no). The
# question is arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), whose answer holds for all threads.
_ASK = f"""
@tvmfast_tiles_answer = internal global i32 0
declare i64 @syscall(i64, ...)
define i32 @{ALLOWED}() alwaysinline {{
  %known = load i32, ptr @tvmfast_tiles_answer
  %is_known = icmp ne i32 %known, 0
  br i1 %is_known, label %answered, label %ask
ask:
  %failed = call i64 (i64, ...) @syscall({_QUESTION})
  %no = icmp ne i64 %failed, 0
  %answer = select i1 %no, i32 2, i32 1
  store i32 %answer, ptr @tvmfast_tiles_answer
  br label %answered
answered:
  %all = phi i32 [ %known, %0 ], [ %answer, %ask ]
  %allowed = icmp eq i32 %all, 1
  %result = zext i1 %allowed to i32
  ret i32 %result
}}
"""
_REFUSAL = (
    "this network is compiled for a CPU with AMX, which this one lacks or the system does not allow: build "
    "it again for this machine"
)


def _refused() -> tirx.Stmt:
    """Return the statement that raises an error unless the process may use tiles."""
    raised = tirx.call_extern("int32", "TVMFFIErrorSetRaisedFromCStr", "RuntimeError", _REFUSAL)
    body = tirx.SeqStmt([tirx.Evaluate(raised), tirx.Evaluate(tirx.tvm_throw_last_error())])
    return tirx.IfThenElse(tirx.EQ(tirx.call_extern("int32", ALLOWED), tirx.const(0, "int32")), body, None)
