"""The configs of a task that tvmfast has a list of, as AutoTVM's spaces and entities."""

import functools


class ConfigSpace:
    """The configs of a task: `len(space)`, `space.get(7)`, `space[7]`; the first is the untuned default."""

    def __init__(self, configs: list[dict]):
        self._configs = configs

    def __len__(self) -> int:
        return len(self._configs)

    def get(self, index: int) -> "ConfigEntity":
        """Return the config at `index`. Raises IndexError outside the space."""
        if not 0 <= index < len(self):
            raise IndexError(f"Index out of range: size {len(self)}, got index {index}")
        return ConfigEntity(index, self._configs[index])

    __getitem__ = get

    def index(self, config: dict) -> int | None:
        """Return the index of a config given as knob values, or None."""
        return self._configs.index(config) if config in self._configs else None

    @functools.cached_property
    def space_map(self) -> dict[str, list]:
        """The values of each knob, by its name."""
        knobs: dict = {}
        for config in self._configs:
            for name, value in config.items():
                knobs.setdefault(name, {})[value] = None
        return {name: list(values) for name, values in knobs.items()}

    def __repr__(self) -> str:
        rows = [
            f"{i:4d} {name}: OtherOption({values}) len={len(values)}"
            for i, (name, values) in enumerate(self.space_map.items())
        ]
        return "\n".join([f"ConfigSpace (len={len(self)}, space_map=", *rows, ")"])


class ConfigEntity:
    """One config: its `index` in the space, and its knobs' `values` by name."""

    def __init__(self, index: int, values: dict):
        self.index, self.values = index, values

    def to_json_dict(self) -> dict:
        """Return the config in the format of AutoTVM's log."""
        knobs = [[name, "ot", value] for name, value in self.values.items()]
        return {"index": self.index, "code_hash": None, "entity": knobs}

    @staticmethod
    def from_json_dict(given: dict) -> "ConfigEntity":
        """Build a config from the format of `to_json_dict`."""
        return ConfigEntity(given["index"], {name: value for name, _, value in given["entity"]})

    def __eq__(self, other) -> bool:
        return isinstance(other, ConfigEntity) and self.values == other.values

    def __hash__(self) -> int:
        return hash(tuple(self.values.items()))

    def __repr__(self) -> str:
        return f"{list(self.values.items())},None,{self.index}"
