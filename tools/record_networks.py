"""Make the records that tvmnotes ships: tune the networks of the notes on this machine, and keep the best.

    python tools/record_networks.py avx512
    python tools/record_networks.py avx2
    python tools/record_networks.py neon                                        # on a CPU of 64-bit ARM
    python tools/record_networks.py avx512 resnet18 ssd_512_resnet50_v1_voc     # of these networks alone

GluonCV's networks need the extra "mxnet". All trials go to one file in tvmnotes's cache, which a second start
goes on with; the best of each workload, together with what is shipped already for other CPUs, goes to
avx512.jsonl or avx2.jsonl of the engine.
"""

import json
import sys

import tvmnotes as tn
from tvmfast.compiler.build import resolve_target

NETWORKS = ("digits", "resnet18", "squeezenet1_1", "mobilenet_v2", "resnet50", "vgg11", "densenet121")
GLUON = ("cifar_resnet20_v1", "resnet101_v1d", "ssd_512_resnet50_v1_voc")
TRIALS = 24  # for each task
ISA = {"avx512": "avx512f", "avx2": "avx2", "neon": "neon"}  # the widest vectors of a file's targets


def load(network: str) -> tuple:
    """Import a network of either list."""
    if network in GLUON:
        symbol_file, params_file, _ = tn.gluon.exported(network)
        return tn.from_mxnet(symbol_file, params_file, {"data": tn.gluon.shape_of(network)})
    net = tn.models.load(network)
    return tn.from_pytorch(net, {"data": net.input_shape})


def target_of(name: str):
    """Return this machine's target, or one of any CPU with AVX2; with a triple, for other machines."""
    target = json.loads(tn.env.target_json(tn.env.host_target()))
    if name == "avx2":
        target = {"kind": "llvm", "mcpu": "core-avx2", "num-cores": tn.env.usable_cores()}
    return resolve_target({**target, "mtriple": f"{tn.env.architecture()}-linux-gnu"})


def main(name: str = "", *networks: str) -> None:
    """Tune networks, and write the best records of one file."""
    if name not in ISA or not {*networks} <= {*NETWORKS, *GLUON}:
        sys.exit(
            f"expected one of {', '.join(ISA)}, and of the networks {', '.join(NETWORKS + GLUON)} or none"
        )
    target = target_of(name)
    sets = tn.env.target_instruction_sets(target)
    if next((isa for isa in ISA.values() if isa in sets), None) != ISA[name]:
        sys.exit(f"this machine's target, {target}, is not one for {name}.jsonl")
    log = tn.data.writable_cache() / "records" / f"{name}.jsonl"
    for network in networks or NETWORKS + GLUON:
        mod, params = load(network)
        made = tn.tune(
            mod, params, target, trials=TRIALS * len(tn.tuning.tasks(mod, params, target)), records=log
        )
        print(f"{network}\n{made}\n", flush=True)
        if made.interrupted:
            break
    shipped = tn.records.FOLDER / f"{name}.jsonl"
    picked = tn.records.pick_best([shipped, log] if shipped.exists() else log, shipped)
    print(f"{len(picked)} records in {shipped}, {shipped.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(*sys.argv[1:])
