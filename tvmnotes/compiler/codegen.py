"""From scheduled kernels to machine code, on all cores.

LLVM takes most of a build's time, and for one module it runs on one core, so the kernels are shared out to several.
They are compiled without the checks of their arguments that TVM puts into each, two thirds of the code: `Compiled` has
checked the inputs, and what one kernel makes fits the next.
"""

from concurrent.futures import ThreadPoolExecutor

import tvm
from tvm import tirx

from .. import env

_PARTS = 2  # for each core, so that one that is done early finds more


def executable(mod: tvm.IRModule, target: tvm.target.Target, runs_here: bool):
    """The virtual machine's executable for a module that `pipeline.lowering` has lowered.

    `runs_here` makes the machine code at once, which TVM leaves to a library's first call.
    """
    functions = dict(mod.functions_items())
    # The first is left to TVM, which would link an executable without a kernel with the system's C++ compiler.
    kernels = [var for var, func in functions.items() if isinstance(func, tirx.PrimFunc)][1:]
    cores, context = env.usable_cores(), tvm.transform.PassContext.current()
    count = min(len(kernels), cores * _PARTS)
    parts = [{var: functions.pop(var) for var in kernels[first::count]} for first in range(count)]

    def compile_apart(part):
        with tvm.transform.PassContext(context.opt_level, config=dict(context.config)):
            return compile_kernels(part, target, runs_here)

    if context.instruments:  # they belong to this thread
        libraries = [compile_kernels(part, target, runs_here) for part in parts]
    else:
        with ThreadPoolExecutor(cores) as pool:
            libraries = list(pool.map(compile_apart, parts))
    rest = tvm.IRModule(functions).with_attr("external_mods", libraries)
    return tvm.relax.build(rest, target=target, relax_pipeline=None)


def compile_kernels(kernels: dict, target, runs_here):
    """What `tvm.tirx.build` does for kernels of a CPU, less the assertions."""
    lower, finalize, _ = tirx.get_default_tir_pipeline(target)
    mod = tirx.transform.BindTarget(target.with_host(target))(tvm.IRModule(kernels))
    mod = tirx.transform.SkipAssert()(finalize()(lower(mod)))
    library = tvm.get_global_func("target.build.llvm")(mod, target)
    if runs_here:
        library.get_function(next(iter(kernels)).name_hint)
    return library
