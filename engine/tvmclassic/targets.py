"""Targets as old scripts write them: strings with options, per-device helpers, `target_host`; and devices."""

import json
import re
import shlex
import warnings

import tvm

from tvmfast.compiler.cuda import gpu
from tvmfast.core import machine
from tvmfast.runtime import on_gpu
from tvmfast.runtime.compiled import Compiled, CompiledForGPU

_RENAMED = {"target": "mtriple"}
_DEVICES = {"llvm": "cpu", "c": "cpu", "stackvm": "cpu", "gpu": "cuda", "nvptx": "cuda", "cl": "opencl"}
_ARM = {  # tvm.target.arm_cpu by model
    "rasp3b": "armv7l-linux-gnueabihf", "rasp4b": "armv8l-linux-gnueabihf", "rasp4b64": "aarch64-linux-gnu",
    "rk3399": "aarch64-linux-gnu", "pixel2": "aarch64-linux-android", "jetson": "aarch64-linux-gnu",
}  # fmt: skip


def parse(target):
    """Convert a target string with options to the dictionary that current TVM takes; return others unchanged.

    Options that no longer exist are dropped with a warning.
    """
    if not isinstance(target, str) or " " not in target.strip() or target.lstrip().startswith("{"):
        return target
    kind, *words = shlex.split(target)
    if kind not in tvm.target.Target.list_kinds():
        return target
    types = tvm.target.TargetKind.options_from_name(kind)
    config = {"kind": kind}
    for name, value in _options(words):
        name = _RENAMED.get(name, name)
        if name not in types:
            warnings.warn(f"target {target!r}: -{name} no longer exists and is left out", stacklevel=3)
        elif types[name] == "Array<str>":
            config[name] = value.split(",")
        elif types[name] in ("int", "bool"):
            config[name] = json.loads(value)
        else:
            config[name] = parse(value) if name == "host" else value
    return config


def _options(words: list[str]):
    """Yield (name, value) for "-name=value", "-name value" and "-name"."""
    words = list(words)
    while words:
        word = words.pop(0).lstrip("-")
        name, sign, value = word.partition("=")
        if not sign and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield name, value or "1"


def text(target: tvm.target.Target) -> str:
    """Return a target in the format of TVM up to 0.19: kind, keys, options by name. `parse` reads it back.

    Unlike in TVM, the host is among the options, since targets with different hosts are not equal.
    """
    return _text(json.loads(machine.target_json(target)))


def _text(config: dict) -> str:
    words = [config["kind"]]
    options = tvm.target.TargetKind.options_from_name(config["kind"])
    for name in sorted({*config} & {*options} - {"kind"}, key=lambda name: (name != "keys", name)):
        value = config[name]
        if isinstance(value, list):
            value = ",".join(value)
        elif isinstance(value, dict):
            value = _text(value)
        elif isinstance(value, bool):
            value = int(value)
        if value != "":
            words.append(f"-{name}={shlex.quote(str(value))}")
    return " ".join(words)


def device(device_type, device_id=None) -> tvm.runtime.Device:
    """`tvm.device` and `tvm.context`: takes a device name or number, or a target string, old or JSON."""
    return tvm.runtime.device(device_kind(device_type), device_id)


def device_kind(device_type):
    """Return the name of the device that a target string means, old or JSON; return others unchanged."""
    if not isinstance(device_type, str):
        return device_type
    name = json.loads(device_type)["kind"] if device_type.startswith("{") else device_type.split()[0]
    return _DEVICES.get(name, name)


def for_build(target=None, host=None):
    """Return the `tvm.target.Target` of a build from `relay.build`'s arguments, or None for this machine.

    `target` is a target, a target string or dictionary, a list of one, or a dictionary from one device to its
    target; None means the current target context. What TVM cannot parse is returned as it is.

    Raises:
        NotImplementedError: Several devices, or a target that is neither for CPUs nor of kind "cuda".
    """
    if isinstance(target, dict) and "kind" not in target:  # heterogeneous build: target by device
        kinds = list(target.values())
        if len(kinds) != 1:
            raise NotImplementedError(
                "relay.build for several devices at once: build for one, tn.build knows no others"
            )
        target = kinds[0]
    if isinstance(target, list | tuple):
        (target,) = target
    if target is None:
        target = tvm.target.Target.current(allow_none=True)
    if target is None:
        return None
    if not isinstance(target, tvm.target.Target):
        try:
            target = create(target)
        except (ValueError, TypeError):
            return target  # tn.build raises the error
    if target.kind.name not in ("llvm", "cuda"):
        raise NotImplementedError(
            f"relay.build for target {target.kind.name!r}: builds are for CPUs (kind 'llvm') and for GPUs of "
            "NVIDIA's (kind 'cuda'); for others use tvm.compile, with the schedules of tvm.s_tir.dlight"
        )
    if target.attrs.get("libs"):
        warnings.warn(f"target {target}: -libs is left out, as tn.build has kernels of its own", stacklevel=3)
    if target.kind.name == "cuda":
        return target
    # Tutorials mean this machine by "llvm" without options; TVM adds the machine's triple to it.
    elsewhere = target.attrs.get("mtriple", "") not in ("", tvm.target.Target("llvm").attrs.get("mtriple"))
    return target if elsewhere or any(target.attrs.get(name) for name in ("mcpu", "mattr")) else None


def cuda(model: str = "unknown", arch: str | None = None, options=None):
    """`tvm.target.cuda`; without `arch`, that of this machine's GPU."""
    return create({"kind": "cuda", **({"arch": arch} if arch else {})})


def arm_cpu(model: str = "unknown", options=None):
    """`tvm.target.arm_cpu`. Raises ValueError for a model that is not in `_ARM`."""
    if model not in _ARM:
        raise ValueError(f"tvm.target.arm_cpu: expected one of {', '.join(_ARM)}; got {model!r}")
    return tvm.target.Target({"kind": "llvm", "mtriple": _ARM[model], "device": "arm_cpu", "model": model})


def create(target):
    """`tvm.target.create`."""
    return tvm.target.Target(with_arch(target))


def with_arch(target):
    """Return what `parse` does; "cuda" without an arch means this machine's GPU, or sm_80 without one."""
    return gpu.with_arch(parse(target))


def runs_on(compiled: Compiled, device=None) -> None:
    """Check that a library runs on `device`, or on the first of several; None: wherever it can.

    Raises:
        ValueError: It is for a CPU, and the device is a GPU, or the reverse.
        RuntimeError: It is a GPU, and this machine has none, or a driver that is too old.
    """
    if isinstance(device, list | tuple):
        device = device[0]
    if device is None:
        return
    for_gpu = isinstance(compiled, CompiledForGPU)
    is_cpu = re.search(r"\bcpu\(", name_of(device))  # also of another machine: remote[1]:cpu(0)
    if device != tvm.cuda(0) if for_gpu else not is_cpu:
        raise ValueError(f"the library is for {'cuda(0)' if for_gpu else 'a CPU'}; got {name_of(device)}")
    if for_gpu and not device.exist:
        raise RuntimeError(f"cuda(0): TVM finds no CUDA device on this machine{on_gpu.old_driver()}")


def name_of(device: tvm.runtime.Device) -> str:
    """Return a device as old scripts print it: cuda(0)."""
    return f"{device.__device_type_name__()}({device.index})"
