"""Operators by name, and the attributes of calls and functions."""

from typing import ClassVar

import tvm


class Attrs:
    """The attributes of a call or function, by name. A leading underscore marks tvmfast's own."""

    def __init__(self, values=()):
        self.__dict__.update(values)

    def keys(self):
        """List the public names."""
        return [name for name in self.__dict__ if name[0] != "_"]

    def items(self):
        """List (name, value) of the public attributes."""
        return [(name, self[name]) for name in self.keys()]

    def get(self, name, default=None):
        """Return an attribute, or `default`."""
        return self.__dict__.get(name, default)

    def get_int(self, name) -> int:
        """Return an attribute as int."""
        return int(self[name])

    def get_int_tuple(self, name) -> tuple[int, ...]:
        """Return an attribute as a tuple of ints."""
        return tuple(int(i) for i in self[name])

    def get_str(self, name) -> str:
        """Return an attribute as str."""
        return str(self[name])

    def __getitem__(self, name):
        return self.__dict__[name]

    def __contains__(self, name) -> bool:
        return name in self.__dict__

    def __repr__(self) -> str:
        return f"Attrs({', '.join(f'{k}={v!r}' for k, v in self.items())})"


class Op:
    """An operator, one object per name. `relay.op.get` returns it."""

    _by_name: ClassVar[dict[str, "Op"]] = {}
    __class__ = property(lambda self: tvm.ir.Op)  # scripts check isinstance(call.op, tvm.ir.Op)

    def __new__(cls, name: str):
        """Return the operator called `name`."""
        if name not in cls._by_name:
            cls._by_name[name] = super().__new__(cls)
            cls._by_name[name].name = name
        return cls._by_name[name]

    def __reduce__(self):
        return Op, (self.name,)

    def __repr__(self) -> str:
        return f"Op({self.name})"
