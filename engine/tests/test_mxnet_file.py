"""MXNet's files read without MXNet: old formats, and whatever else may come."""

import json
import random
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing import QUICK, STORM

import tvmfast
from tvmfast.frontends.mxnet.files import read_params, read_symbol

DAMAGED = (1000 if QUICK else 10_000) * STORM  # files of a kind


def test_relays_importer_stands_on_ours(rng):
    """With a kernel of our own in it, which Relay's words must carry."""
    import tvmclassic

    nodes = [{"op": "null", "name": "data", "inputs": []}, {"op": "null", "name": "shift", "inputs": []}]
    nodes.append({"op": "broadcast_add", "name": "add", "inputs": [[0, 0], [1, 0]]})
    nms = {"op": "_contrib_box_nms", "name": "nms", "inputs": [[2, 0]], "attrs": {"id_index": "0", "topk": "5"}}
    text = json.dumps({"nodes": [*nodes, nms], "heads": [[3, 0]]})
    boxes = rng.uniform(0, 1, (1, 30, 6)).astype("float32")
    shift = np.zeros(6, "float32")
    wanted = tvmfast.build(*tvmfast.from_mxnet(text, {"shift": shift}, {"data": boxes.shape}))(boxes)
    tvmclassic.enable()
    try:
        import tvm
        from tvm import relay
        from tvm.contrib import graph_executor

        mod, params = relay.frontend.from_mxnet(text, {"data": boxes.shape}, arg_params={"shift": shift})
        with tvm.transform.PassContext(opt_level=3):
            lib = relay.build(mod, "llvm", params=params)
        module = graph_executor.GraphModule(lib["default"](tvm.cpu()))
        module.run(data=boxes)
        np.testing.assert_array_equal(module.get_output(0).numpy(), wanted)
    finally:
        tvmclassic.disable()


# ---------------------------------------------------------------- .params

DTYPES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6, "bool": 7}


def one(array, version: int) -> bytes:
    """An array as MXNet of some version saves it: 0 is before 1.0, 1 to 3 are the formats V1 to V3."""
    shape = array.shape
    head = {
        0: struct.pack(f"<I{len(shape)}I", len(shape), *shape),
        1: struct.pack(f"<II{len(shape)}q", 0xF993FAC8, len(shape), *shape),
        2: struct.pack(f"<Iii{len(shape)}q", 0xF993FAC9, 0, len(shape), *shape),
        3: struct.pack(f"<Iii{len(shape)}q", 0xF993FACA, 0, len(shape), *shape),
    }[version]
    return head + struct.pack("<iii", 1, 0, DTYPES[str(array.dtype)]) + array.tobytes()


def params_file(arrays: dict, version: int = 2) -> bytes:
    parts = [struct.pack("<QQQ", 0x112, 0, len(arrays)), *(one(array, version) for array in arrays.values())]
    parts.append(struct.pack("<Q", len(arrays)))
    parts += [struct.pack("<Q", len(name.encode())) + name.encode() for name in arrays]
    return b"".join(parts)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_format_and_dtype_is_read(tmp_path, version, dtype):
    arrays = {"arg:weight": np.arange(24).reshape(2, 3, 4).astype(dtype), "aux:mean": np.ones(5, dtype)}
    (tmp_path / "net.params").write_bytes(params_file(arrays, version))
    found = read_params(tmp_path / "net.params")
    assert list(found) == ["weight", "mean"]
    for (_, wanted), array in zip(arrays.items(), found.values(), strict=True):
        assert array.dtype == wanted.dtype
        np.testing.assert_array_equal(array, wanted)


@pytest.mark.storm
@settings(max_examples=300 * STORM)
@given(st.binary(max_size=200))
def test_whatever_bytes_come_end_in_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "random.params"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"expected a \.params file"):
        read_params(path)


@pytest.mark.storm
def test_damaged_files_crash_nothing_and_take_no_memory(tmp_path):
    """Bytes changed, cut out and put in, some of them where sizes are. What is read is never more than the file."""
    good = params_file({f"arg:layer{n}_weight": np.arange(60, dtype="float32").reshape(3, 4, 5) for n in range(4)})
    path, dice = tmp_path / "damaged.params", random.Random(0)
    refused = 0
    tracemalloc.start()
    for _ in range(DAMAGED):
        content = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(content))
            kind = dice.randrange(4)
            if kind == 0:
                content[at] = dice.randrange(256)
            elif kind == 1:
                content[at : at + 8] = struct.pack("<q", dice.choice([-1, 2**31, 2**62, 10**9, 0, 1]))
            elif kind == 2:
                del content[at : at + dice.randint(1, 40)]
            else:
                content[at:at] = dice.randbytes(dice.randint(1, 20))
            content = content or bytearray(b"\0")
        path.write_bytes(content)
        try:
            found = read_params(path)
        except ValueError as error:
            assert "expected a .params file as MXNet saves it" in str(error)
            refused += 1
        else:
            assert sum(array.nbytes for array in found.values()) <= len(content)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refused > DAMAGED / 2 and most < 10 << 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-3], r"is cut short at byte"),
        (lambda b: b[:70], r"promises an array of shape \(2, 3\), float32, and is cut short"),
        (lambda b: b"\x89PNG" + b, r"begins with something else at byte 8"),
        (lambda b: b"", r"\(0 bytes\) is cut short"),
        (lambda b: b[:16] + struct.pack("<Q", 2**60) + b[24:], r"promises 1,152,921,504,606,846,976 arrays"),
        (
            lambda b: b.replace(struct.pack("<qq", 2, 3), struct.pack("<qq", 2**40, 2**40)),
            r"promises an array of shape \(1099511627776, 1099511627776\)",
        ),
        (
            lambda b: b.replace(struct.pack("<Ii", 0xF993FAC9, 0), struct.pack("<Ii", 0xF993FAC9, 1)),
            r"has a sparse array",
        ),
    ],
    ids=range(7),
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path, change, message):
    path = tmp_path / "net.params"
    path.write_bytes(change(params_file({"arg:weight": np.ones((2, 3), "float32")})))
    with pytest.raises(ValueError, match=message):
        read_params(path)
    with pytest.raises(FileNotFoundError, match=r"no \.params file at"):
        read_params(tmp_path / "other.params")


# ---------------------------------------------------------------- -symbol.json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"no symbol file at ''"),
        ("{", r"cut short or damaged"),
        ("{}", r"is JSON, but no symbol: no 'nodes'"),
        ('{"nodes": 3, "heads": []}', r"is JSON, but no symbol"),
        ('{"nodes": [], "heads": []}', r"no outputs"),
        ('{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[1, 0]]}', r"is JSON, but no symbol"),
        (
            '{"nodes": [{"op": "relu", "name": "x", "inputs": [[0, 0]]}], "heads": [[0, 0]]}',
            r"reads node 0, which does not come before it",
        ),
        (
            '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[0, -1, 0]]}',
            r"output -1 of a node is read",
        ),
        (
            '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[0, 1e999, 0]]}',
            r"output inf of a node is read; they count from 0",
        ),
        ("{" * 10_000, r"cut short or damaged|nested too deeply"),
        ('{"a":' * 100_000, r"cut short or damaged|nested too deeply"),
    ],
    ids=range(11),
)
def test_a_damaged_symbol_is_refused(text, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_symbol(text)


def test_an_output_that_a_node_does_not_have():
    symbol = '{"nodes": [{"op": "null", "name": "x", "inputs": []}], "heads": [[0, 7, 0]]}'
    with pytest.raises(ValueError, match=r"reads output 7 of null 'x', which has 1 \(from 0 on\)"):
        tvmfast.from_mxnet(symbol, {}, {"x": (2,)})


@pytest.mark.storm
def test_damaged_symbols_end_in_one_error_or_a_graph():
    dice, conv = random.Random(1), {"kernel": "(3, 3)", "no_bias": "True", "num_filter": "16", "pad": "(1, 1)"}
    norm = {"eps": "1e-05", "fix_gamma": "False"}
    nodes = [
        {"op": "null", "name": "data", "inputs": []},
        {"op": "null", "name": "stem_conv_weight", "attrs": conv, "inputs": []},
        {"op": "Convolution", "name": "stem_conv", "attrs": conv, "inputs": [[0, 0, 0], [1, 0, 0]]},
        *({"op": "null", "name": f"stem_bn_{part}", "attrs": norm, "inputs": []} for part in ("gamma", "beta")),
        {"op": "null", "name": "stem_bn_moving_mean", "attrs": {"__init__": '["zero", {}]', **norm}, "inputs": []},
        {"op": "null", "name": "stem_bn_moving_var", "attrs": {"__init__": '["one", {}]', **norm}, "inputs": []},
        {"op": "BatchNorm", "name": "stem_bn", "attrs": norm, "inputs": [[i, 0, int(i > 4)] for i in range(2, 7)]},
        {"op": "Activation", "name": "stem_relu", "attrs": {"act_type": "relu"}, "inputs": [[7, 0, 0]]},
        {"op": "null", "name": "first_conv_weight", "attrs": conv, "inputs": []},
        {"op": "Convolution", "name": "first_conv", "attrs": conv, "inputs": [[8, 0, 0], [9, 0, 0]]},
        {"op": "null", "name": "first_bn_gamma", "attrs": norm, "inputs": []},
    ]
    variables = [number for number, node in enumerate(nodes) if node["op"] == "null"]
    graph = {"nodes": nodes, "arg_nodes": variables, "node_row_ptr": [*range(13)], "heads": [[11, 0, 0]]}
    small = json.dumps({**graph, "attrs": {"mxnet_version": ["int", 10901]}})
    for _ in range(DAMAGED):
        text = list(small)
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(1, len(text))
            text[at : at + dice.randint(0, 3)] = dice.choice(["", "-", "9", "[", "]", '"', "null", ",", "1e9", "{}"])
        try:
            read_symbol("".join(text))
        except ValueError as error:
            assert "expected the JSON of an MXNet symbol" in str(error)


def test_states_of_before_version_09_become_variables():
    nodes = [{"op": "null", "param": {}, "name": name, "inputs": []} for name in ("data", "bn_gamma", "bn_beta")]
    nodes.append({"op": "BatchNorm", "param": {"eps": "0.001"}, "name": "bn", "inputs": [[0, 0], [1, 0], [2, 0]]})
    found = read_symbol(json.dumps({"nodes": nodes, "arg_nodes": [0, 1, 2], "heads": [[3, 0]]}))
    assert found.variables() == ["data", "bn_gamma", "bn_beta", "bn_moving_mean", "bn_moving_var"]
    assert [found.nodes[n].name for n, _ in found.nodes[found.heads[0][0]].inputs] == found.variables()


def test_a_large_checkpoint_is_not_held_twice(tmp_path):
    """250 MB, as the operating system counts them: 100 MB here, as memory goes by the size."""
    arrays = {f"arg:layer{n}": np.ones((1 << 20,), "float32") for n in range(25)}
    (tmp_path / "large.params").write_bytes(params_file(arrays))
    tracemalloc.start()
    found = read_params(tmp_path / "large.params")
    assert len(found) == 25 and tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
