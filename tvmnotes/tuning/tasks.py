"""The workloads of a module, whose configs tuning chooses: its convolutions and its products with known matrices."""

import tvm

from ..compiler import pipeline, resolve_target
from ..compiler.schedules import choose


def workloads(mod: tvm.IRModule, params: dict, target=None) -> dict:
    """How often `tn.build(mod, params, target)` makes a kernel of each workload, in the order of the network."""
    target, found = resolve_target(target), {}

    def seen(workload):
        found[workload] = found.get(workload, 0) + 1

    arrays = {k: v if isinstance(v, tvm.runtime.Tensor) else tvm.runtime.tensor(v) for k, v in params.items()}
    with target, choose(seen):
        mod = tvm.relax.transform.BindParams("main", arrays)(mod)
        tvm.transform.Sequential(pipeline.passes(3, target))(mod)
    return found
