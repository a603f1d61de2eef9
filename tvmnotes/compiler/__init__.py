"""The compiler: `build.build` turns a module from an importer into a `runtime.compiled.Compiled`.

In the order in which a network passes through them:

build           checks the module and its parameters, resolves the target, runs everything below
records         tuning records, and the lookup of the best config for a workload
pipeline        the passes of each opt level, the lowering after them, the graph as plain data for graph.json
conv_call       a convolution, as fold, conv_transpose, layout and combine_parallel recognise it
fold            constants folded with NumPy; batch norms and affine chains
precision       half floats accumulated in float32
decompose       functions that TVM gets wrong, or lacks for float64, made of others
bools           booleans compared and reduced as bytes
recurrent       LSTM, GRU and RNN: a kernel for all steps
conv_transpose  transposed convolutions as plain ones
attention       softmax between two matrix products: a kernel for all three
few_rows        products of few rows with a matrix that is a view, without a copy of it
rms_norm        root mean square norms, whose steps become one kernel
layout          NCHW to the blocked layout NCHW[x]c; convolutions become kernels
indices         checks of indices, as kernels for a CPU
writes          writes of a few elements, as kernels
state           inputs fed from outputs: checked; writes to them in place
detection       a detector's last steps: the k best scores and non-maximum suppression, for CPU and GPU
legalize        the remaining operators become kernels
group_norm      norms of groups of channels
open_kernels    softmax over an axis of open length; what kernels written as loops need for open sizes
open_reshapes   reshapes of open sizes, which fuse as those of fixed sizes do
operator_notes  the operators that each kernel fuses
special_values  NaN, infinities, signed zeros and denormals, in kernels and in operators
one_thread      parallel loops of open length, run by one thread where that is short
quotients       integers divided by data, and LLVM's remainders
workloads       what kernels have to compute, and their configs
rules           a schedule for each kind of workload
scheduling      the pass that schedules each kernel
costs           flops and bytes of each kernel
views           a result that is a view of the last kernel's, where it would be copied to another shape
buffers         buffers that values share, where sizes are open
kills           instructions between kernels that change nothing, dropped
shapes          shapes of open sizes, each made once in a run
memory          memory of a run
open_sizes      sizes that stay open: their bounds, and costs that depend on them
variants        the network for stated values of open sizes, in the same library
codegen         machine code for a CPU, each kernel compiled once
cuda            targets and schedules for an NVIDIA GPU
cuda_compiled   code for it, and the `Compiled` that runs there
selftest        a small network, built and run, for the doctor

combine_parallel, horizontal fusion, is a pass that `build` does not run by itself.
"""
