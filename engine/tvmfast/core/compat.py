"""What the package knows of TVM's insides, each with the place where TVM has it; review it for each new TVM.

Numbers, names and calls that TVM does not export are defined here. Private names that cannot be, because they
belong to an object or a base class of TVM's or torch's, stay in these files, and in no other:

    compiler/codegen.py                _collect_from_import_tree
    compiler/shape_variants.py         _update_type
    frontends/onnx/ops/node.py         _get_convert_map: TVM's converters of ONNX operators
    frontends/onnx/ops/__init__.py     _convert_operator, _check_for_unsupported_ops, overridden;
                                       _nodes, _params
    frontends/pytorch/importer.py      torch's _split_decomp_table_to_cia_and_python_decomp,
                                       _special_op_to_preserve_cia, _decompose_exported_program
    backends/torch_compile.py          torch's _C, _set_grad_enabled, _enter_inference_mode,
                                       _exit_inference_mode, _enter_autocast; a tensor's _version
    frontends/pytorch/ops/linalg.py    _convert_data_type
    frontends/pytorch/ops/converters.py  _convert_data_type, and torch's _overloadname
    frontends/pytorch/output_aliases.py  a tensor's _version, and its storage's _cdata
    tuning/metaschedule.py             _cls, _initialize_with_tune_context
    tuning/server.py                   _serve_loop, _ffi_api
    tuning/tracker.py                  _event_handler, overridden
    tuning/workers.py                  _worker_map, _proc; _start, _worker_run; `PopenPoolExecutor`, replaced

Public names that are replaced or read in an unusual way, which the test cannot find:

    core/workarounds.py                `inspect` of TVMScript's parser; the package `tvm.s_tir.tensor_intrin`
    tvmclassic/patches.py              methods of `tvm.IRModule`, `GlobalVar.__call__`
    tvmclassic/relay/lift.py           `_METHODS`: what `dir` of an operator's attributes lists besides these
    compiler/legalize/ieee754.py       what `compilation_pipeline.get_tir_pipeline` returns
    runtime/tensors.py                 functions of the runtime that are found by name, "runtime.…" and
                                       "ffi.ArrayGetItem"
"""

# OpPatternKind in tvm/relax/op_attr_types.h, a header that the package of TVM does not include.
OUT_EWISE_FUSABLE = 4  # a kernel that elementwise operators may be fused into as an epilogue
OPAQUE = 8  # and one that nothing is fused with

# `VirtualMachine.POOLED_ALLOCATOR` in tvm/runtime/vm.py, which cannot be imported without the compiler.
POOLED_ALLOCATOR = 2  # it keeps what is freed

CONCATENATE = "concatenate"  # how the kernels of relax.concat begin: tvm/relax/transform/legalize_ops
TIR_PREFIX = "tir_"  # of elementwise kernels' names: legalize_ops/unary.py there
FUSED_PREFIX = "fused_"  # of the functions that FuseOps makes: src/relax/transform/fuse_ops.cc


def start_machine(module, device: int):
    """Start the virtual machine of an executable, as `VirtualMachine.__init__` in tvm/runtime/vm.py does.

    Args:
        module: The executable's module.
        device: DLPack's number for the kind of device.

    Returns:
        The machine, a module with the network's functions and `set_instrument`.
    """
    machine = module["vm_load_executable"]()
    machine["vm_initialization"](device, 0, POOLED_ALLOCATOR)
    return machine
