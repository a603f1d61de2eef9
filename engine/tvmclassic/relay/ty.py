"""Relay's types: the shapes and dtypes known at compile time."""


def _tuple_text(items) -> str:
    text = ", ".join(map(str, items))
    return f"({text},)" if len(items) == 1 else f"({text})"


class TensorType:
    """The type of an array: `shape`, an int or `Any` per axis, and `dtype`."""

    def __init__(self, shape, dtype: str = "float32"):
        self.shape, self.dtype = tuple(s if isinstance(s, Any) else int(s) for s in shape), str(dtype)

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    def accepts(self, other) -> bool:
        """Return whether a value of the type `other` may be one of this type; `Any` is of each length."""
        if not isinstance(other, TensorType) or self.dtype != other.dtype:
            return False
        if len(self.shape) != len(other.shape):
            return False
        pairs = zip(self.shape, other.shape, strict=True)
        return all(n == m or isinstance(n, Any) or isinstance(m, Any) for n, m in pairs)

    def __eq__(self, other) -> bool:
        return isinstance(other, TensorType) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self):
        return hash((self.shape, self.dtype))

    def __repr__(self) -> str:
        return f"Tensor[{_tuple_text(self.shape)}, {self.dtype}]"


class TupleType:
    """The type of a tuple: `fields` are the types of its values."""

    def __init__(self, fields):
        self.fields = list(fields)

    def __eq__(self, other) -> bool:
        return isinstance(other, TupleType) and self.fields == other.fields

    def __repr__(self) -> str:
        return _tuple_text([repr(field) for field in self.fields])


class FuncType:
    """The type of a function: the types of its arguments and of its result."""

    def __init__(self, arg_types, ret_type, type_params=(), type_constraints=()):
        self.arg_types, self.ret_type = list(arg_types), ret_type
        self.type_params, self.type_constraints = list(type_params), list(type_constraints)

    def __repr__(self) -> str:
        return f"fn ({', '.join(map(repr, self.arg_types))}) -> {self.ret_type}"


class Any:
    """An axis of any length, known when the program runs."""

    def __repr__(self) -> str:
        return "?"
