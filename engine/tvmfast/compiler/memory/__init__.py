"""Memory of a run: what is written in place, shared and freed.

output_alias  a result that is a view of the last kernel's, where it would be copied to another shape
dynamic_plan  buffers that values share, where sizes are open
dead_kills    instructions between kernels that change nothing, dropped
shape_cse     shapes of open sizes, each made once in a run
state         inputs fed from outputs: checked; writes to them in place
usage         how much a run takes
"""
