"""TE schedules (`te.create_schedule`, gone since TVM 0.20), recorded and replayed on a `tvm.s_tir.Schedule`.

ops       operations and their axes
steps     what a schedule records
stage     stages: the loops of an operation, and what a script asks of them
schedule  `Schedule`: the stages of a program, cache stages, factored reductions
extern    `te.extern`
recorder  a TensorIR schedule that writes down each call as a line of Python
replay    the order in which today's TVM takes the same steps; `Schedule.today`'s script
padding   sums without a rest, for factored reductions
build     `tvm.lower`, `tvm.build`, and modules with their old methods
names     what `tvmclassic.enable` adds to `tvm` and `tvm.te`
"""
