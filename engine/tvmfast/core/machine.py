"""This machine: usable cores, CPU, instruction set, target, and whether TVM works on it.

`import tvmfast` takes the thread count from here, `build` and `load` the target, notebook 00 and `python -m
tvmfast doctor` their `report` and `problems`. Only the standard library is imported at the top.
"""

import ctypes
import difflib
import functools
import html
import json
import logging
import os
import platform
import re
import shutil
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from . import data, errors, renamed
from .compat import COMPILED_AS

# The instruction sets that LLVM uses in generated tensor code, by LLVM's names.
_ISA = (
    *("sse4.2", "avx", "f16c", "fma", "avx2", "bmi", "bmi2", "avxvnni"),
    *("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16"),
    *("amx-tile", "amx-int8", "amx-bf16"),
    *("neon", "fullfp16", "dotprod", "bf16", "i8mm", "sve"),
)
ARCH_PRCTL, REQUEST_STATE, TILES = 158, 0x1023, 18  # Linux's call for a register state, and that of AMX
_KERNEL_NAMES = {"bmi": "bmi1", "neon": "asimd", "fullfp16": "asimdhp", "dotprod": "asimddp"}
_log = logging.getLogger(__name__)

# The options that a target of kind llvm may have, and the processors of triples that LLVM knows. For any
# other triple LLVM returns no machine; TVM 0.27 uses it nevertheless, and crashes.
_OPTIONS = (
    *("kind", "tag", "keys", "device", "model", "libs", "host", "mcpu", "mattr", "mtriple", "mabi"),
    *("mfloat-abi", "num-cores", "vector-width", "opt-level", "jit", "fast-math", "fast-math-nnan"),
    *("fast-math-ninf", "fast-math-nsz", "fast-math-arcp", "fast-math-contract", "fast-math-reassoc"),
)
_Number = TypeVar("_Number", int, float)
_OPTION = re.compile(r"[\w./,:+-]*")
_PINNING = "torch", "onnx"  # extras with exact versions that everybody has; MXNet's NumPy is for itself alone
_PROCESSOR = re.compile(
    r"x86_64h?|amd64|i[3-6]86|aarch64|arm64e?|(arm|thumb)(v(4t|5te|6|6m|7|7a|7m|7em|7l|7s|8|8a|8l|8m\.main))?|"
    r"riscv(32|64)|mips(64)?(el)?|powerpc(64)?(le)?|ppc64(le)?|s390x|loongarch64|wasm(32|64)|hexagon"
)


# ---------------------------------------------------------------- cores and threads


def usable_cores(root: str | os.PathLike = "/") -> int:
    """Count the physical cores that this process may keep busy: at least 1.

    These are the CPUs of the affinity mask, with hyper-threads of one core counted once, limited by the CPU
    quota of the process's cgroup (version 1 or 2) and of its ancestors. `root` contains /proc and /sys. Of an
    Apple chip the performance cores count: a kernel waits for its slowest thread.
    """
    root = Path(root)
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    cores = set()
    devices = root / "sys/devices/system/cpu"
    for cpu in cpus:
        names = (devices / f"cpu{cpu}/topology" / name for name in ("core_cpus_list", "thread_siblings_list"))
        cores.add(next(filter(None, (_read(name).strip() for name in names)), str(cpu)))
    if not devices.exists():  # macOS, Windows
        import psutil  # for speed: Linux does without

        return max(1, _performance_cores() or psutil.cpu_count(logical=False) or len(cores))
    return max(1, min(len(cores), int(_cgroup_quota(root))))


def _performance_cores() -> int | None:
    """Return the number of an Apple chip's performance cores; None elsewhere."""
    count, size = ctypes.c_int32(), ctypes.c_size_t(4)
    name = b"hw.perflevel0.physicalcpu"
    try:
        failed = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(count), ctypes.byref(size), None, 0)
    except (AttributeError, OSError, TypeError):  # another system has no such function
        return None
    return None if failed else count.value


def _cgroup_quota(root: Path) -> float:
    """Return the smallest CPU quota of the cgroup and its ancestors, in CPUs, at least 1; 65536 for none."""
    quotas = [float(1 << 16)]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ["cpu.max"]
        elif "cpu" in controllers.split(","):
            base, names = root / "sys/fs/cgroup/cpu", ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        folder = base / path.strip("/")
        for level in (folder, *folder.parents):
            words = " ".join(_read(level / name) for name in names).split()  # the quota and its period
            if len(words) == 2 and all(map(str.isdigit, words)):
                quotas.append(int(words[0]) / int(words[1]))
            if level == base:
                break
    return max(1.0, min(quotas))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def stay_on(cpus: list[int]) -> None:
    """Run on these CPUs only, by Linux's numbers, as do threads and processes that start from now on.

    TVM would bind its threads to others, so that these are left unbound. Raises ValueError for CPUs that this
    process may not use, and on other systems.
    """
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    try:
        os.sched_setaffinity(0, cpus)
        if others := set(cpus) - os.sched_getaffinity(0):  # Linux takes those of them that it has
            os.sched_setaffinity(0, before)
            raise OSError(f"no CPU {min(others)}")
    except (OSError, OverflowError, AttributeError) as error:
        known = ", ".join(map(str, sorted(before))) or "none"
        raise ValueError(
            f"cores: cannot stay on {cpus} ({error}); those that this process may use: {known}"
        ) from None
    os.environ["TVM_BIND_THREADS"] = "0"


def threads() -> int:
    """Return the number of threads of TVM's kernels: TVM_NUM_THREADS, or `usable_cores()` if not a number."""
    setting = os.environ.get("TVM_NUM_THREADS", "")
    return int(setting) if setting.isdigit() and int(setting) > 0 else usable_cores()


def cap_if_quick(amount: _Number, cap: _Number) -> _Number:
    """Return a time or a number of measurements, limited to `cap` if TVMFAST_QUICK is set, as in tests."""
    return amount if renamed.variable("QUICK", "0") == "0" else min(amount, cap)


# ---------------------------------------------------------------- CPU and target


@functools.cache
def cpu_name() -> str:
    """Return the processor's name as its vendor writes it; LLVM's where the system gives none, as on ARM."""
    line = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.M)
    return line.group(1).strip() if line else _system_cpu()


def architecture(triple: str = "") -> str:
    """Return the processor of a triple, or of this machine, by one name: "x86_64", "aarch64"."""
    name = (triple.partition("-")[0] or platform.machine()).lower()
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(name, name)


def system(triple: str = "") -> str:
    """Return the operating system of a triple, or of this machine: "Linux", "macOS" or "Windows"."""
    if not triple:
        return {"Darwin": "macOS"}.get(platform.system(), platform.system())
    found = re.search("(apple|darwin|macos)|(windows|win32|mingw)", triple)
    return ("macOS" if found[1] else "Windows") if found else "Linux"


@functools.cache
def instruction_sets() -> tuple[str, ...]:
    """Return the instruction sets of this CPU that compiled kernels may use, by LLVM's names.

    The operating system's list is used if there is one, as a hypervisor may hide what the CPU's name implies.
    AMX is among them if Linux lets this process use it, for which it is asked here, and stays so for all
    threads and in forks.
    """
    line = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.M)
    if not line:
        return target_instruction_sets({"kind": "llvm", "mcpu": _llvm_cpu()})
    flags = {_normalized(flag) for flag in line.group(1).split()}
    if "amxtile" in flags and not _tiles_are_allowed():
        flags = {flag for flag in flags if not flag.startswith("amx")}
    return tuple(isa for isa in _ISA if _normalized(_KERNEL_NAMES.get(isa, isa)) in flags)


def _tiles_are_allowed() -> bool:
    """Ask Linux for the registers of AMX."""
    try:
        return ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_STATE, TILES) == 0
    except (AttributeError, OSError, TypeError):  # another system has no such function
        return False


def target_instruction_sets(target: Any) -> tuple[str, ...]:
    """Return the instruction sets, by LLVM's names, that code for a target (or a dictionary) may use."""
    import tvm  # for speed: `import tvmfast` loads no library

    features = {str(f) for f in tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(target))}
    return tuple(isa for isa in _ISA if isa in features)


def _normalized(flag: str) -> str:
    return re.sub("[._-]", "", flag)


@functools.cache
def _system_cpu() -> str:
    import tvm  # for speed: `import tvmfast` loads no library

    with tvm.target.Target("llvm"):
        return tvm.target.codegen.llvm_get_system_cpu()


def _llvm_cpu() -> str:
    return COMPILED_AS.get(_system_cpu(), _system_cpu())


@functools.cache
def host_target() -> Any:
    """Return the TVM target of this machine: kind llvm, CPU name (znver2 for a znver3 too), usable cores.

    Instruction sets that the CPU's name implies but this machine lacks are disabled. A Zen 4 or 5 whose
    AVX-512 is hidden by a hypervisor is taken for a Zen 3: LLVM keeps its tiles in memory, too.
    """
    import tvm  # for speed: `import tvmfast` loads no library

    cpu, has = _llvm_cpu(), instruction_sets()
    if cpu in ("znver4", "znver5") and "avx512f" not in has:
        cpu = COMPILED_AS.get("znver3", cpu)
    spec = {"kind": "llvm", "mcpu": cpu, "num-cores": usable_cores()}
    implied = target_instruction_sets(spec)
    lacking = [f"-{isa}" for isa in implied if isa not in has]
    if changed := lacking + [f"+{isa}" for isa in has if isa not in implied]:
        spec["mattr"] = changed
    _log.debug("the target of this machine: %s", spec)
    return tvm.target.Target(spec)


def target_json(target: Any) -> str:
    """Return a TVM target as the line of JSON that records, manifests and keys contain.

    `str(target)` gives the same, except while `tvmclassic` makes targets print as they did in older
    TVMs.
    """
    import tvm  # for speed: `import tvmfast` loads no library

    return str(tvm.get_global_func("target.TargetAsJSON")(target))


def checked_target(described: Any) -> Any:
    """Make a TVM target from a description that may come from an untrusted source.

    A CPU of `COMPILED_AS` becomes the one that LLVM compiles for in its place.

    Args:
        described: A kind, a dictionary, a line of JSON, or a target.

    Raises:
        Forbidden: A ValueError, for options that do more than name a machine ("cl-opt" makes LLVM write
            files) and for triples whose processor LLVM may not know, which would end the process.
        UnknownCpu: A ValueError, as LLVM does not know the CPU or an attribute.
        ValueError: An option's value is no word or number.
        Exception: Whatever TVM raises for a description that is no target.
    """
    import tvm  # for speed: `import tvmfast` loads no library

    if isinstance(described, str) and described.lstrip().startswith("{"):
        described = json.loads(described)
    _check_triple(described)
    target = tvm.target.Target(described)
    options = json.loads(target_json(target))
    _check_triple(options)
    _check_options(options)
    if target.kind.name != "llvm":
        return target
    if options.get("mcpu") in COMPILED_AS:
        options["mcpu"] = COMPILED_AS[options["mcpu"]]
        target = tvm.target.Target(options)
    _check_cpu(target, options)
    return target


def _check_triple(described: Any) -> None:
    """Raise Forbidden if LLVM may not know the processor of a target's triple, or of its host's."""
    if not isinstance(described, dict):
        return
    _check_triple(described.get("host"))
    triple = described.get("mtriple") or ""
    if isinstance(triple, str) and triple and not _PROCESSOR.fullmatch(triple.partition("-")[0]):
        raise errors.Forbidden(
            f"no processor of the triple {triple!r} is known; expected one such as x86_64-linux-gnu, "
            "aarch64-linux-gnu, armv7l-linux-gnueabihf or riscv64-linux-gnu"
        )


def _check_options(options: dict) -> None:
    """Raise Forbidden for target options that are not accepted, ValueError for meaningless values."""
    for name, value in options.items():
        if isinstance(value, dict):
            _check_options(value)
        elif options["kind"] == "llvm" and name not in _OPTIONS and not name.startswith("feature."):
            raise errors.Forbidden(
                f"the option {name!r} is not taken; expected some of {', '.join(_OPTIONS)}"
            )
        elif not all(
            _OPTION.fullmatch(str(word)) for word in (value if isinstance(value, list) else [value])
        ):
            raise ValueError(f"expected words and numbers for the option {name!r}; got {value!r}")
        elif isinstance(value, int) and value < 0:
            raise ValueError(f"expected 0 or more for the option {name!r}; got {value}")


def _check_cpu(target: Any, options: dict) -> None:
    """Raise UnknownCpu for a CPU or attribute unknown to LLVM, which would substitute or ignore it."""
    from tvm.target import Target, codegen  # for speed: `import tvmfast` loads no library

    cpu = options.get("mcpu")
    any_cpu = Target({name: options[name] for name in ("kind", "mtriple") if name in options})  # no warning
    cpus = [str(name) for name in codegen.llvm_get_cpu_archlist(any_cpu)]
    if cpu is not None and cpu not in cpus:
        near = difflib.get_close_matches(cpu, cpus, n=3) or sorted(cpus)[:3]
        raise errors.UnknownCpu(f"LLVM knows no CPU {cpu!r}; near names: {', '.join(near)}")
    known = {str(name) for name in codegen.llvm_get_cpu_features(target)}
    for attribute in [name for names in options.get("mattr", ()) for name in names.split(",")]:
        if attribute[:1] not in ("+", "-") or (attribute[0] == "+" and attribute[1:] not in known):
            raise errors.UnknownCpu(
                f"LLVM knows no attribute {attribute!r} of such a CPU; expected one such as '+avx2'"
            )


# ---------------------------------------------------------------- report and problems


def machine() -> str:
    """Describe in a line what a result may depend on: CPU, usable cores, target CPU, TVM version."""
    cpu = host_target().attrs["mcpu"]
    return f"{cpu_name()}, {usable_cores()} cores, target {cpu}, TVM {_version('apache-tvm')}"


def cpp_compiler() -> str | None:
    """Return the path of the C++ compiler that links libraries, g++ or clang++; None if there is neither."""
    return shutil.which("g++") or shutil.which("clang++")


def torch_compile_lacks() -> str | None:
    """Say what `torch.compile` needs to build its code and lacks here; None if nothing is missing."""
    if not cpp_compiler():
        return "torch.compile needs g++ or clang++, and there is neither"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        version = platform.python_version_tuple()[1]
        return (
            "torch.compile needs Python's headers, and there is no Python.h: install "
            f"python3.{version}-dev (Debian, Ubuntu) or python3-devel (Fedora)"
        )
    return None


class Report(dict):
    """Facts by name that print as aligned text and show as a table in a notebook."""

    def __str__(self) -> str:
        width = max(map(len, self))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in self.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        left = 'style="text-align: left"'
        cells = ((html.escape(name), html.escape(value)) for name, value in self.items())
        rows = (f"<tr><th {left}>{name}</th><td {left}>{value}</td></tr>" for name, value in cells)
        return f"<table>{''.join(rows)}</table>"


def report() -> Report:
    """Collect versions, CPU, instruction set, cores, threads, target, GPU, network and cache."""
    import tvm  # for speed: `import tvmfast` loads no library

    packages = ("torch", "torchvision", "onnx", "onnxruntime", "numpy", "mxnet")
    versions = {name: _version(name) or "not installed" for name in packages}
    listed = os.cpu_count() or 1
    compiler = "none: Compiled.save and torch.compile need g++ or clang++"
    if cpp_compiler():
        compiler = "; but ".join(filter(None, ["found", torch_compile_lacks()]))
    network = "used when a file is neither bundled nor cached"
    if data.offline():
        network = f"off ({renamed.spelled('OFFLINE')})"
    return Report(
        {
            "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
            "TVM": f"{_version('apache-tvm')} (LLVM {tvm.target.codegen.llvm_version_major()})",
            **versions,
            "CPU": cpu_name(),
            "instruction sets": ", ".join(instruction_sets()),
            "cores": f"{usable_cores()} usable of {listed} listed by the kernel",
            "threads": f"{threads()} (TVM_NUM_THREADS={os.environ.get('TVM_NUM_THREADS', '')})",
            "target": target_json(host_target()),
            "C++ compiler": compiler,
            "GPU": "CUDA device 0" if tvm.cuda(0).exist else "none",
            "network": network,
            "cache": str(data.cache()).replace(str(Path.home()), "~", 1),
        }
    )


def problems() -> list[str]:
    """List the problems of this installation, one sentence each, with its fix; empty if all is well."""
    faults = []
    for package, pin in _pins().items():
        installed = _version(package)
        if installed is None:
            faults.append(f"{package} is not installed: pip install {package}=={pin}")
        elif installed.split("+")[0] != pin:
            faults.append(f"{package} is {installed}, tested is {pin}: pip install {package}=={pin}")
    try:
        _compile_and_run()
    except Exception as error:  # whatever it is, the user must be told
        pins = " ".join(f"{package}=={pin}" for package, pin in _pins().items() if "tvm" in package)
        faults.append(
            f"TVM does not compile and run a kernel ({type(error).__name__}: {errors.lines(error)[-1]}): "
            f"pip install --force-reinstall {pins}"
        )
    return faults


def _pins() -> dict[str, str]:
    """Return the packages that tvmfast pins exactly on this Python, with their versions.

    Of those that its extras bring, the ones that are installed count.
    """
    from packaging.requirements import Requirement  # for speed: the doctor alone asks

    try:
        listed = [*map(Requirement, metadata.requires("tvmfast") or [])]
    except metadata.PackageNotFoundError:
        raise SystemExit(
            "tvmfast runs from a folder without being installed: pip install -e ./engine"
        ) from None
    pins = {}
    for extra in ("", *_PINNING):
        for r in listed:
            applies = (r.marker is None and not extra) or (r.marker and r.marker.evaluate({"extra": extra}))
            exact = [s for s in r.specifier if s.operator == "==" and "*" not in s.version]
            if applies and len(r.specifier) == 1 and exact and not (extra and _version(r.name) is None):
                pins[r.name] = exact[0].version
    return pins


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _compile_and_run() -> None:
    import numpy as np  # for speed: `import tvmfast` loads no library
    import tvm  # for speed
    from tvm import te  # for speed

    a = te.placeholder((1024,), name="a")
    func = te.create_prim_func([a, te.compute((1024,), lambda i: a[i] * 2.0 + 1.0, name="b")])
    schedule = tvm.s_tir.Schedule(func)
    schedule.parallel(schedule.get_loops("b")[0])
    x = np.arange(1024, dtype="float32")
    y = tvm.runtime.tensor(np.zeros_like(x))
    tvm.compile(schedule.mod, target=host_target())(tvm.runtime.tensor(x), y)
    if not np.array_equal(y.numpy(), x * 2 + 1):
        raise RuntimeError("a compiled kernel gave wrong results")
