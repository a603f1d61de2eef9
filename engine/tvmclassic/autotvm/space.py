"""The config space that a template defines: splits, orders and annotations of loops, and free knobs.

Knobs, policies and the numbering of configs, whose first knob runs fastest, are those of AutoTVM in TVM 0.8
(Chen et al., "Learning to Optimize Tensor Programs", NeurIPS 2018), as logs hold them.
"""

import itertools
import math

from ..te.ops import constant, key

_LONGEST_KNOB = 1 << 20  # options of one knob: more is a mistake, and takes minutes to list


class InstantiationError(ValueError):
    """A config that its template refuses: it costs its trial only."""


# ---------------------------------------------------------------- one option of a knob


class SplitEntity:
    """Lengths of the loops that a loop is split into, outermost first; that of the outermost may be -1."""

    kind = "sp"

    def __init__(self, size):
        self.size = list(size)

    @property
    def value(self) -> list:
        """What a log holds."""
        return self.size

    def apply(self, sch, op, axis) -> list:
        """Split `axis` of the stage `sch[op]`; return the loops, outermost first."""
        loops = []
        for number in range(1, len(self.size)):
            outer, axis = sch[op].split(axis, factor=math.prod(self.size[number:]))
            loops.append(outer)
        return [*loops, axis]

    def __repr__(self) -> str:
        return str(self.size)


class ReorderEntity:
    """An order of loops: `perm` says which of them is the first, the second and so on."""

    kind = "re"

    def __init__(self, perm):
        self.perm = list(perm)

    @property
    def value(self) -> list:
        """What a log holds."""
        return self.perm

    def apply(self, sch, op, axes) -> list:
        """Reorder `axes` of the stage `sch[op]`; return them in their new order."""
        ordered = [axes[number] for number in self.perm]
        sch[op].reorder(*ordered)
        return ordered

    def __repr__(self) -> str:
        return str(self.perm)


class AnnotateEntity:
    """What becomes of each of some loops: "none", "unroll" or "vec"."""

    kind = "an"

    def __init__(self, anns):
        self.anns = list(anns)

    @property
    def value(self) -> list:
        """What a log holds."""
        return self.anns

    def apply(
        self, sch, op, axes, axis_lens=None, max_unroll=None, vec_size=None, cfg=None, source=None
    ) -> list:
        """Annotate `axes` of the stage `sch[op]`, whose lengths `axis_lens` has; return them.

        Raises InstantiationError for a loop longer than `max_unroll`, or a vector's not in `vec_size`.
        """
        for number, (axis, annotation) in enumerate(zip(axes, self.anns, strict=True)):
            length = axis_lens[number] if axis_lens else None
            if annotation == "unroll":
                if max_unroll and length and length > max_unroll:
                    raise InstantiationError(
                        f"a loop of {length} is too long to unroll, at most {max_unroll}"
                    )
                sch[op].unroll(axis)
            elif annotation == "vec":
                if vec_size and length and length not in vec_size:
                    raise InstantiationError(f"vectors of {length} elements; expected one of {vec_size}")
                sch[op].vectorize(axis)
        return axes

    def __repr__(self) -> str:
        return str(self.anns)


class OtherOptionEntity:
    """An option of a knob: `val`, a number, a string or a list of these."""

    kind = "ot"

    def __init__(self, val):
        self.val = val

    @property
    def value(self):
        """What a log holds."""
        return self.val

    def __repr__(self) -> str:
        return str(self.val)


def _frozen(value):
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


# ---------------------------------------------------------------- all options of a knob


class Knob:
    """The options of a knob: `entities`, and its description as `print(space)` shows it."""

    def __init__(self, entities: list, described: str):
        if not entities:
            raise ValueError(
                f"{described}: no option is left; widen its policy, its candidates or its filter"
            )
        self.entities, self._described = entities, described
        self.numbers = {_frozen(entity.value): number for number, entity in enumerate(entities)}

    def __len__(self) -> int:
        return len(self.entities)

    def __repr__(self) -> str:
        return f"{self._described} len={len(self)}"


class Axis:
    """A loop of the template, known by its `length`, -1 if that is not known."""

    def __init__(self, of=-1):
        if isinstance(of, Axis):
            of = of.length
        elif (dom := getattr(of, "dom", None)) is not None:
            of = dom.extent
        known = constant(of)
        self.length = -1 if known is None else known


def _splits(
    axis, policy="factors", num_outputs=2, max_factor=1 << 31, filter=None, no_tail=None, candidate=()
):
    length = (
        math.prod(Axis(each).length for each in axis) if isinstance(axis, list | tuple) else Axis(axis).length
    )
    described = f"Split(policy={policy}, product={length}, num_outputs={num_outputs})"
    if length < 1:
        raise ValueError(f"{described}: the length of the loop is not known; give define_split a number")
    if policy == "candidate":
        sizes = [list(size) for size in candidate]
    else:
        divisors = [n for n in range(1, length + 1) if length % n == 0]
        powers = [1 << n for n in range(length.bit_length()) if 1 << n <= length]
        by_policy = {"factors": divisors, "power2": powers, "verbose": sorted({*divisors, *powers})}
        if policy not in by_policy:
            raise ValueError(f"{described}: expected the policy factors, power2, verbose or candidate")
        factors = [n for n in by_policy[policy] if n <= max_factor]
        if len(factors) ** (num_outputs - 1) > _LONGEST_KNOB:
            raise ValueError(
                f"{described}: over {_LONGEST_KNOB} options; give a max_factor, or fewer outputs"
            )
        exact = policy == "factors" if no_tail is None else no_tail
        sizes = [
            [-1, *reversed(inner)]
            for inner in itertools.product(factors, repeat=num_outputs - 1)
            if math.prod(inner) <= length and (not exact or length % math.prod(inner) == 0)
        ]
    if any(len(size) != num_outputs for size in sizes):
        raise ValueError(f"{described}: expected {num_outputs} numbers in each candidate")
    entities = [SplitEntity(size) for size in sizes]
    return Knob([each for each in entities if filter is None or filter(each)], described)


def _orders(axes, policy="all", candidate=(), interval=None):
    count, described = len(axes), f"Reorder(policy={policy}) naxes={len(axes)}"
    if policy == "identity":
        orders = [range(count)]
    elif policy == "all":
        orders = list(itertools.permutations(range(count)))
    elif policy == "interval_all":
        first, last = interval or (1, 0)
        if not 0 <= first <= last <= count:
            raise ValueError(f"{described}: expected an interval of 0 to {count}; got {interval}")
        inner = itertools.permutations(range(first, last))
        orders = [[*range(first), *each, *range(last, count)] for each in inner]
    elif policy == "candidate":
        places = {key(axis): number for number, axis in enumerate(axes)}
        if any(key(axis) not in places for order in candidate for axis in order):
            raise ValueError(f"{described}: a candidate has an axis that is not among those to reorder")
        orders = [[places[key(axis)] for axis in order] for order in candidate]
    else:
        raise ValueError(f"{described}: expected the policy identity, all, interval_all or candidate")
    return Knob([ReorderEntity(order) for order in orders], described)


def _annotations(axes, policy, candidate=()):
    described = f"Annotate(policy={policy}) naxes={len(axes)}"
    if policy == "candidate":
        found = [list(each) for each in candidate]
        if any(len(each) != len(axes) or not {*each} <= {"none", "unroll", "vec"} for each in found):
            raise ValueError(f"{described}: expected none, unroll or vec for each loop; got {found}")
    elif policy == "vec":
        found = [["none"] * (len(axes) - 1) + ["vec"]]
    elif policy == "try_vec":
        found = [["none"] * len(axes), ["none"] * (len(axes) - 1) + ["vec"]]
    elif policy == "unroll":
        found = [["unroll"] * len(axes)]
    elif policy == "try_unroll":
        found = [["none"] * len(axes), ["unroll"] * len(axes)]
    elif policy == "try_unroll_vec":
        unrolled = itertools.product(("none", "unroll"), repeat=max(len(axes) - 1, 0))
        found = [[*outer, inner] for outer in unrolled for inner in ("none", "unroll", "vec")]
    else:
        raise ValueError(
            f"{described}: expected vec, try_vec, unroll, try_unroll, try_unroll_vec or candidate"
        )
    return Knob([AnnotateEntity(each) for each in found], described)


# ---------------------------------------------------------------- spaces and configs


class TemplateConfig:
    """One config of a template: `config["tile_x"]` is the option of a knob. A template defines nothing in it.

    Attributes:
        index: Its number in the space.
        values: The option of each knob, as tuples, numbers and strings.
    """

    is_fallback, code_hash = False, None

    def __init__(self, index: int, entities: dict):
        self.index, self._entities = index, entities
        self.values = {name: _frozen(entity.value) for name, entity in entities.items()}

    def __getitem__(self, name: str):
        """Return the option of a knob."""
        if name not in self._entities:
            raise InstantiationError(f"the config has no knob {name!r}; it has {', '.join(self._entities)}")
        return self._entities[name]

    def define_split(self, name, axis, policy="factors", **options) -> list[Axis]:
        """Return loops for `define_reorder`."""
        return [Axis() for _ in self[name].size]

    def define_reorder(self, name, axes, policy, **options) -> list:
        """Return the loops."""
        return list(axes)

    def define_annotate(self, name, axes, policy, **options) -> None:
        """Do nothing."""

    def define_knob(self, name, candidate) -> None:
        """Do nothing."""

    def add_flop(self, flop) -> None:
        """Do nothing."""

    @staticmethod
    def axis(var) -> Axis:
        """Return a loop for `define_split`: of a length, or of an axis of a tensor."""
        return Axis(var)

    reduce_axis = axis

    def raise_error(self, message: str) -> None:
        """Refuse this config: raises InstantiationError."""
        raise InstantiationError(message)

    def valid(self) -> bool:
        """Return True: a config that is refused raises."""
        return True

    def to_json_dict(self) -> dict:
        """Return the config in the format of AutoTVM's log."""
        listed = [[name, entity.kind, entity.value] for name, entity in self._entities.items()]
        return {"index": self.index, "code_hash": None, "entity": listed}

    def __eq__(self, other) -> bool:
        return isinstance(other, TemplateConfig) and self.values == other.values

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def __repr__(self) -> str:
        return f"{list(self._entities.items())},None,{self.index}"


class TemplateSpace:
    """The configs of a template, which defines them as it runs: `len(space)`, `space.get(7)`.

    While the template runs, and as the config of a call without records (`is_fallback`), each knob has its
    first option, or the one that the template sets: `cfg["tile_x"] = SplitEntity([-1, 8])`.

    Attributes:
        space_map: The `Knob`s by name.
        flop: Operations of a call, if the template said so by `add_flop`, else 0.
    """

    code_hash = None

    def __init__(self, is_fallback=False):
        self.is_fallback, self.flop = is_fallback, 0
        self.space_map: dict[str, Knob] = {}
        self._set: dict = {}

    def define_split(self, name, axis, policy="factors", **options) -> list[Axis]:
        """Define the ways to split a loop into `num_outputs`; returns loops for `define_reorder`.

        Args:
            name: Of the knob.
            axis: A loop, its length, or a list of these, as of a fused loop.
            policy: "factors" (those of the length), "power2", "verbose" (both), or "candidate".
            **options: `num_outputs`; `max_factor` of all loops but the outermost; `filter`, of a SplitEntity;
                `no_tail`, whether the factors have to divide the length; `candidate`, lists of lengths.
        """
        knob = self._define(name, _splits(axis, policy, **options))
        return [Axis() for _ in knob.entities[0].size]

    def define_reorder(self, name, axes, policy, **options) -> list:
        """Define orders of loops: policy "identity", "all", "interval_all" (`interval`), "candidate"."""
        self._define(name, _orders(axes, policy, **options))
        return list(axes)

    def define_annotate(self, name, axes, policy, **options) -> None:
        """Define what becomes of loops, by a policy, or as the lists of "candidate" say.

        "vec" makes the innermost one a vector, "unroll" unrolls all; "try_vec" and "try_unroll" may leave
        them, and "try_unroll_vec" may do either to the innermost.
        """
        self._define(name, _annotations(axes, policy, **options))

    def define_knob(self, name, candidate) -> None:
        """Define a knob with the options `candidate`: numbers, strings, or lists of these."""
        self._define(
            name, Knob([OtherOptionEntity(each) for each in candidate], f"OtherOption({list(candidate)})")
        )

    def _define(self, name: str, knob: Knob) -> Knob:
        self.space_map[name] = knob
        return knob

    axis = reduce_axis = staticmethod(TemplateConfig.axis)
    raise_error, valid = TemplateConfig.raise_error, TemplateConfig.valid

    def add_flop(self, flop) -> None:
        """Add to the operations of a call, which are counted if no template says them."""
        self.flop += int(flop)

    def __len__(self) -> int:
        return math.prod(map(len, self.space_map.values()))

    def get(self, index: int) -> TemplateConfig:
        """Return the config at `index`. Raises IndexError outside the space."""
        if not 0 <= index < len(self):
            raise IndexError(f"Index out of range: size {len(self)}, got index {index}")
        entities, left = {}, index
        for name, knob in self.space_map.items():
            left, number = divmod(left, len(knob))
            entities[name] = knob.entities[number]
        return TemplateConfig(index, entities)

    def __getitem__(self, name):
        """Return the option of a knob, by its name; or a config, by its index."""
        if isinstance(name, int):
            return self.get(name)
        if name in self._set:
            return self._set[name]
        if name not in self.space_map:
            raise InstantiationError(f"no knob {name!r} is defined; there are {', '.join(self.space_map)}")
        return self.space_map[name].entities[0]

    def __setitem__(self, name, entity) -> None:
        self._set[name] = entity

    def find(self, listed: list) -> TemplateConfig | None:
        """Return the config of a log's entities, [name, kind, value] each; None if it is not one of these."""
        given = {name: _frozen(value) for name, _, value in listed}
        if given.keys() != self.space_map.keys():
            return None
        index, step = 0, 1
        for name, knob in self.space_map.items():
            if (number := knob.numbers.get(given[name])) is None:
                return None
            index, step = index + step * number, step * len(knob)
        return self.get(index)

    def features(self, values: dict) -> list[float]:
        """Return what a cost model sees of a config: the lengths of splits, the number of other options."""
        found: list[float] = []
        for name, knob in self.space_map.items():
            value, kind = values[name], knob.entities[0].kind
            numbers = value[1:] if kind == "sp" else value if kind == "re" else [knob.numbers[value]]
            found += [float(n) for n in numbers]
        return found

    def __repr__(self) -> str:
        rows = [f"{number:4d} {name}: {knob}" for number, (name, knob) in enumerate(self.space_map.items())]
        return "\n".join([f"ConfigSpace (len={len(self)}, space_map=", *rows, ")"])
