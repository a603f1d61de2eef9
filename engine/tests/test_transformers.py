"""Networks of transformers and timm with random weights: TVM's result is PyTorch's. Some here; `make suites` has all.

`python engine/tests/test_transformers.py [names]` prints a line for each, at the highest opt level: whether it imports,
whether it agrees to 1e-3 of the largest magnitude in an output, and the largest difference. Those with attention are
built twice: with its single steps ("eager"), and with the one operator that PyTorch has for it ("sdpa").
"""

import importlib.util
import os
import sys
from functools import partial

import numpy as np
import pytest
import torch
from agreement import close, reference
from testing import sampled
from torch.utils import _pytree as pytree

import tvmfast

os.environ["HF_HUB_OFFLINE"] = "1"
for package in ("transformers", "timm"):
    if not importlib.util.find_spec(package):
        reason = f"{package} is not installed; the dev extra has it: pip install '.[dev]'"
        pytest.skip(reason, allow_module_level=True)

TOLERANCE = 1e-3
LENGTH = 16
SIZES = {
    **{"vocab_size": 1000, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16},
    **{"intermediate_size": 128, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1},
    **{"eos_token_id": 2, "decoder_start_token_id": 2, "use_cache": False},
}


class OfTensors(torch.nn.Module):
    """A network of transformers that takes tensors by position, and returns the tensors of its result."""

    def __init__(self, net, names):
        super().__init__()
        self.net, self.names = net, names

    def forward(self, *tensors):
        result = self.net(**dict(zip(self.names, tensors, strict=True)), return_dict=False)
        return tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))


def of_transformers(kind, attention, inputs, task="AutoModel", **config):
    """The network of a kind, and its inputs."""
    import transformers  # for speed: it takes seconds, and each process of pytest-xdist collects all tests

    settings = transformers.AutoConfig.for_model(kind, **config)
    net = getattr(transformers, task).from_config(settings, attn_implementation=attention)
    return OfTensors(net, list(inputs)), tuple(inputs.values())


def text(padded=True, **more):
    """Two sentences; the second is shorter, which is what the mask says."""
    mask = torch.ones(2, LENGTH, dtype=torch.int64)
    mask[1, -5:] = 0
    given = {"input_ids": torch.randint(3, 1000, (2, LENGTH))} | ({"attention_mask": mask} if padded else {})
    return given | more


def of_text(kind, attention, padded=True, **config):
    return of_transformers(kind, attention, text(padded), **SIZES | config)


def of_two_texts(kind, attention, **config):
    """An encoder and a decoder."""
    target = torch.randint(3, 1000, (2, LENGTH // 2))
    return of_transformers(kind, attention, text(decoder_input_ids=target), **SIZES | config)


def of_images(kind, attention, size=32, task="AutoModel", **config):
    return of_transformers(kind, attention, {"pixel_values": torch.randn(1, 3, size, size)}, task, **config)


def of_objects(kind, attention, **config):
    """A detector; its backbone has no attention."""
    attention = {"": attention, "backbone_config": "eager"}
    return of_images(kind, attention, 64, "AutoModelForObjectDetection", num_queries=10, **PAIRED, **config)


def of_sound(kind, attention, **config):
    sound, target = torch.randn(1, 16, 2 * LENGTH), torch.randint(3, 1000, (1, LENGTH // 2))
    return of_transformers(kind, attention, {"input_features": sound, "decoder_input_ids": target}, **SIZES | config)


def model_of_timm(name, **options):
    import timm  # for speed, as transformers

    return timm.create_model(name, **options)


def of_timm(name, _, size=64, **options):
    return model_of_timm(name, num_classes=10, **options), (torch.randn(1, 3, size, size),)


GROUPED = {"num_key_value_heads": 2}
SLIDING = GROUPED | {"sliding_window": 8}
PAIRED = {
    **{"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
    **{"decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128},
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
T5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
DEBERTA = {
    "relative_attention": True,
    "position_buckets": 8,
    "pos_att_type": ["c2p", "p2c"],
    "norm_rel_ebd": "layer_norm",
}
SEGFORMER = {
    "depths": [1, 1, 1, 1],
    "hidden_sizes": [16, 32, 48, 64],
    "num_attention_heads": [1, 2, 3, 4],
    "decoder_hidden_size": 32,
}
RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 24, 32, 40],
    "depths": [1, 1, 1, 1],
    "out_features": ["stage4"],
}
BOTH, EAGER = ("eager", "sdpa"), ("eager",)

# What makes a network of one kind of attention, and the kinds that it has.
NETWORKS = {
    "bert": (partial(of_text, "bert"), BOTH),
    "roberta": (partial(of_text, "roberta", max_position_embeddings=80), BOTH),
    "modernbert": (partial(of_text, "modernbert", local_attention=8), BOTH),
    "deberta-v2": (partial(of_text, "deberta-v2", **DEBERTA), EAGER),
    "gpt2": (partial(of_text, "gpt2"), BOTH),
    "gpt_neox": (partial(of_text, "gpt_neox"), BOTH),
    "llama": (partial(of_text, "llama", **GROUPED), BOTH),
    "qwen2": (partial(of_text, "qwen2", **GROUPED), BOTH),
    "qwen3": (partial(of_text, "qwen3", **GROUPED), BOTH),
    "mistral": (partial(of_text, "mistral", **SLIDING), BOTH),
    "gemma2": (partial(of_text, "gemma2", **SLIDING), EAGER),
    "phi3": (partial(of_text, "phi3", **SLIDING), BOTH),
    "mixtral": (partial(of_text, "mixtral", num_local_experts=4, **GROUPED), BOTH),
    "qwen3_moe": (partial(of_text, "qwen3_moe", **EXPERTS, **GROUPED), BOTH),
    "t5": (partial(of_two_texts, "t5", **T5), BOTH),
    "bart": (partial(of_two_texts, "bart", **PAIRED), BOTH),
    "whisper": (partial(of_sound, "whisper", num_mel_bins=16, max_source_positions=LENGTH, **PAIRED), BOTH),
    "vit": (partial(of_images, "vit", **SIZES, image_size=32, patch_size=8), BOTH),
    "segformer": (partial(of_images, "segformer", task="AutoModelForSemanticSegmentation", **SEGFORMER), EAGER),
    "detr": (partial(of_objects, "detr", backbone_config=RESNET), BOTH),
    "clip_text_model": (partial(of_text, "clip_text_model"), BOTH),
    "mamba": (partial(of_text, "mamba", state_size=8), EAGER),
    "mobilenetv4_conv_small": (partial(of_timm, "mobilenetv4_conv_small"), EAGER),
    "convnextv2_atto": (partial(of_timm, "convnextv2_atto", depths=(1, 1, 2, 1)), EAGER),
    "repvgg_a0": (partial(of_timm, "repvgg_a0"), EAGER),
    "ghostnet_100": (partial(of_timm, "ghostnet_100"), EAGER),
    "edgenext_xx_small": (partial(of_timm, "edgenext_xx_small"), EAGER),
    "levit_128s": (partial(of_timm, "levit_128s", img_size=64, depth=(1, 1, 1)), EAGER),
    "fastvit_t8": (partial(of_timm, "fastvit_t8"), EAGER),
    "res2net50_26w_4s": (partial(of_timm, "res2net50_26w_4s", layers=(1, 1, 1, 1)), EAGER),
    "dpn48b": (partial(of_timm, "dpn48b"), EAGER),
    "xcit_nano_12_p16_224": (partial(of_timm, "xcit_nano_12_p16_224", img_size=64, depth=2), EAGER),
    "cait_xxs24_224": (partial(of_timm, "cait_xxs24_224", img_size=64, depth=2), EAGER),
    "maxxvit_rmlp_nano_rw_256": (partial(of_timm, "maxxvit_rmlp_nano_rw_256", img_size=64, depths=(1, 1, 1, 1)), EAGER),
}


def network(name: str, attention: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Make a network in eval mode, its weights random where they would all be 0 or 1, and its inputs."""
    torch.manual_seed(0)
    net, inputs = NETWORKS[name][0](attention)
    with torch.no_grad():
        for weight in net.parameters():
            if weight.numel() > 1 and weight.min() == weight.max():
                weight.add_(0.1 * torch.randn(weight.shape))
    return net.eval(), inputs


def imported(name: str, attention: str) -> tuple:
    """Make and import a network: return it, its inputs, the module and its parameters."""
    net, inputs = network(name, attention)
    return net, inputs, *tvmfast.from_pytorch(net, [(f"in{number}", x) for number, x in enumerate(inputs)])


def difference(net, inputs, mod, params, opt_level: int = 3) -> float:
    """Build and run a network: return the largest difference, relative to the largest magnitude of an output."""
    with torch.no_grad():
        wanted = [x.numpy() for x in pytree.tree_leaves(net(*inputs))]
    outputs = pytree.tree_leaves(tvmfast.build(mod, params, opt_level=opt_level)(*(x.numpy() for x in inputs)))
    assert [(x.shape, x.dtype) for x in outputs] == [(x.shape, x.dtype) for x in wanted]
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(outputs, wanted, strict=True))


TESTED = [("bert", "eager"), ("gpt2", "eager"), ("llama", "sdpa")]


@pytest.mark.parametrize("names", sampled(TESTED, TESTED[2:]), ids="-".join)
def test_a_network_gives_pytorchs_results(names, quick):
    net, inputs, mod, params = imported(*names)
    wanted = reference(net, *inputs)
    for level in (3,) if quick else (0, 3):
        close(tvmfast.build(mod, params, opt_level=level)(*inputs), wanted)


@pytest.mark.parametrize(
    ("name", "attention"), [pytest.param("bert", "eager", marks=pytest.mark.full), ("gpt2", "sdpa")]
)
def test_a_network_leaves_its_length_open(name, attention):
    net, inputs = network(name, attention)
    shape = ("batch", tvmfast.Dim("length", 1, SIZES["max_position_embeddings"]))
    mod, params = tvmfast.from_pytorch(net, [(f"in{place}", (shape, "int64")) for place in range(len(inputs))])
    lib = tvmfast.build(mod, params, records=False)
    for length in (1, 2, 7, 64):
        given = (torch.randint(3, 1000, (2, length)), torch.ones(2, length, dtype=torch.int64))
        given[1][1, length // 2 + 1 :] = 0
        close(lib(*given), reference(net, *given))


def test_a_network_that_returns_its_cache_is_refused():
    net, _ = of_text("gpt2", "sdpa", use_cache=True)
    with pytest.raises(ValueError, match=r"it returns a transformers\.cache_utils\.DynamicCache.*use_cache=False"):
        tvmfast.from_pytorch(net.net.eval(), {"input_ids": ((1, LENGTH), "int64")})


def main(names: list[str]) -> None:
    """Print a line for each network: whether it imports and agrees, and the largest relative difference."""
    failed = 0
    print(f"{'network':28} {'attention':10} {'imports':8} {'agrees':7} largest relative difference")
    for name, attention in [(each, kind) for each in names or NETWORKS for kind in NETWORKS[each][1]]:
        found = []
        try:
            case = imported(name, attention)
            found.append("yes")
            error = difference(*case)
            found += ["yes" if error < TOLERANCE else "no", f"{error:.1e}"]
        except Exception as error:
            found += ["no"] * (2 - len(found)) + [f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"]
        failed += "no" in found
        print(f"{name:28} {attention:10} {found[0]:8} {found[1]:7} {found[2]}", flush=True)
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
