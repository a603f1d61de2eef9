"""Relay's types say what is known of a value before it is computed."""


class TensorType:
    """The type of an array has its `shape`, a number of elements or `Any` for each axis, and its `dtype`."""

    def __init__(self, shape, dtype: str = "float32"):
        self.shape, self.dtype = tuple(s if isinstance(s, Any) else int(s) for s in shape), str(dtype)

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        return self.shape

    def __eq__(self, other) -> bool:
        return isinstance(other, TensorType) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self):
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"Tensor[({', '.join(map(str, self.shape))}{',' * (len(self.shape) == 1)}), {self.dtype}]"


class TupleType:
    """The type of a tuple has the types of its values."""

    def __init__(self, fields):
        self.fields = list(fields)

    def __eq__(self, other) -> bool:
        return isinstance(other, TupleType) and self.fields == other.fields

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.fields))}{',' * (len(self.fields) == 1)})"


class FuncType:
    """The type of a function has the types of its arguments and of its result."""

    def __init__(self, arg_types, ret_type, type_params=(), type_constraints=()):
        self.arg_types, self.ret_type = list(arg_types), ret_type
        self.type_params, self.type_constraints = list(type_params), list(type_constraints)

    def __repr__(self) -> str:
        return f"fn ({', '.join(map(repr, self.arg_types))}) -> {self.ret_type}"


class Any:
    """It stands for an axis whose length is known only when the network runs. It can be written down, but not built."""

    def __repr__(self) -> str:
        return "?"
