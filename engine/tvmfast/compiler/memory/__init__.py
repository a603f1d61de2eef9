"""Memory of a run: planning, aliasing and state.

output_alias  the output aliases the last kernel's result where only a reshape follows
dynamic_plan  memory planning where dims are dynamic
lowered       elimination of instructions that free no memory, and of shapes that exist already
state         inputs that alias outputs: checks, and partial updates in place
views         reshapes that become views of their tensors
usage         how much a run takes
"""
