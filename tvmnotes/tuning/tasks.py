"""The workloads of a module, whose configs tuning chooses: its convolutions and its products with known matrices."""

import tvm

from ..compiler import bind, pipeline, resolve_target
from ..compiler.schedules import choose


def workloads(mod: tvm.IRModule, params: dict, target=None) -> dict:
    """How often `tn.build(mod, params, target)` makes a kernel of each workload, in the order of the network."""
    target, found = resolve_target(target), {}

    def seen(workload):
        found[workload] = found.get(workload, 0) + 1

    mod, _ = bind(mod, params)
    with target, choose(seen):
        tvm.transform.Sequential(pipeline.passes(3, target))(mod)
    return found
