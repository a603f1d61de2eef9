"""`Outputs`: the aliases among outputs and inputs of a PyTorch graph, which the compiled graph reproduces."""

from collections import Counter

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

from ...core.specs import dtype_of
from ...runtime.compiled import Compiled


class Outputs:
    """The aliases and strides of a graph's outputs.

    Attributes:
        computed: The indices of the outputs that are not inputs, or views of them.
        writes: Whether the graph writes to an input.
    """

    def __init__(self, graph: fx.GraphModule, args: list):
        with FakeTensorMode(allow_non_fake_inputs=True):
            fakes = [_fake(arg) if isinstance(arg, Tensor) else arg for arg in args]
            versions = [fake._version for fake in fakes if isinstance(fake, Tensor)]
            self._values = graph(*fakes)
        self.writes = versions != [fake._version for fake in fakes if isinstance(fake, Tensor)]
        self._sources = {}  # of a view: the index of the input, by that of the output
        self._detached = set()  # the indices of views that need no gradient where their input does
        self._same = {}  # the index of the output that is the same tensor
        self.computed = []
        storages = {_storage(fake): n for n, fake in enumerate(fakes) if isinstance(fake, Tensor)}
        seen = {}
        for n, value in enumerate(self._values):
            if not isinstance(value, Tensor):
                if not isinstance(value, bool | int | float | None):
                    raise NotImplementedError(f"it returns a {type(value).__name__}")
            elif id(value) in seen:
                self._same[n] = seen[id(value)]
            elif (source := storages.get(_storage(value))) is not None:
                if value.dtype != fakes[source].dtype:
                    raise NotImplementedError("it returns a view of an input as another dtype")
                self._sources[n] = source, value is fakes[source]
                if value is not fakes[source] and not value.requires_grad:
                    self._detached.add(n)
            else:
                if not _is_writable(value):
                    raise NotImplementedError("it returns a view with elements that overlap")
                self.computed.append(n)
            seen[id(value)] = n
        sharing = Counter(_storage(self._values[n]) for n in self.computed)
        shared = [self._values[n] for n in self.computed if sharing[_storage(self._values[n])] > 1]
        if len({(_storage(value), value.dtype) for value in shared}) > len(set(map(_storage, shared))):
            raise NotImplementedError("it returns two views of one tensor, of different dtypes")
        self._shared = {_storage(value) for value in shared}

    def check(self, library: Compiled) -> None:
        """Raise if a library's outputs have other shapes or dtypes than the graph's."""
        for n, got in zip(self.computed, library.outputs, strict=True):
            value = self._values[n]
            if (tuple(value.shape), dtype_of(value)) != (got.shape, got.dtype):
                raise NotImplementedError(
                    f"an output is {dtype_of(value)}{list(value.shape)}, TVM's is {got}"
                )

    def with_aliases(self, computed: list[Tensor], args: tuple) -> tuple:
        """Return all outputs with PyTorch's aliases and strides; `computed` are contiguous tensors."""
        results = list(self._values)
        bases = {}
        for n, tensor in zip(self.computed, computed, strict=True):
            value = self._values[n]
            if (storage := _storage(value)) in self._shared:
                if storage not in bases:
                    size = value.untyped_storage().nbytes() // value.element_size()
                    bases[storage] = tensor.new_empty(size)
                results[n] = _write_strided(bases[storage], value, value.storage_offset(), tensor)
            elif tensor.stride() != value.stride():
                results[n] = _write_strided(tensor.new_empty(_extent(value)), value, 0, tensor)
            else:
                results[n] = tensor
        for n, (source, itself) in self._sources.items():
            of, value = args[source], self._values[n]
            of = of.detach() if n in self._detached else of
            offset = of.storage_offset() + value.storage_offset()
            results[n] = of if itself else of.as_strided(value.shape, value.stride(), offset)
        for n, other in self._same.items():
            results[n] = results[other]
        return tuple(results)


def _fake(tensor: Tensor) -> Tensor:
    fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    return fake.requires_grad_(tensor.is_floating_point())


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _extent(tensor: Tensor) -> int:
    """Count the elements from a tensor's first to its last in memory."""
    if not tensor.numel():
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def _is_writable(tensor: Tensor) -> bool:
    """Return whether no two elements of a tensor share memory, except along axes of stride 0."""
    extent = 1
    for step, n in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if n > 1 and step:
            if step < extent:
                return False
            extent += (n - 1) * step
    return True


def _write_strided(memory: Tensor, like: Tensor, offset: int, values: Tensor) -> Tensor:
    """Write values into memory with the strides of `like`, and return that view."""
    once = tuple(slice(0, 1) if not step else slice(None) for step in like.stride())
    view = memory.as_strided(like.shape, like.stride(), offset)
    view[once].copy_(values[once])
    return view
