"""Write the course's digit network as an MXNet checkpoint beside this script: `python data/mxnet/make.py`.

The symbol is written by MXNet's own operators, the weights are those of data/digits/digits_resnet20.pt, and before the
files take their place, MXNet's outputs are held against PyTorch's. Needs MXNet (Python 3.10 or 3.11).
"""

from pathlib import Path

import mxnet as mx
import numpy as np
import torch

import tvmnotes as tn
from tvmnotes import digits

HERE = Path(__file__).parent
NAME = "digits_resnet20"


def conv_bn(x, name: str, conv, norm, params: dict):
    """A convolution and its batch norm, as symbols; their weights go to `params`."""
    made = mx.sym.Convolution(x, name=f"{name}_conv", num_filter=conv.out_channels, kernel=conv.kernel_size,
                              stride=conv.stride, pad=conv.padding, no_bias=True)  # fmt: skip
    params |= {
        f"{name}_conv_weight": conv.weight, f"{name}_bn_gamma": norm.weight, f"{name}_bn_beta": norm.bias,
        f"{name}_bn_moving_mean": norm.running_mean, f"{name}_bn_moving_var": norm.running_var,
    }  # fmt: skip
    return mx.sym.BatchNorm(made, name=f"{name}_bn", fix_gamma=False, eps=norm.eps)


def network(net: digits.ResNet20):
    """The symbol of the network and its parameters."""
    params = {}
    x = mx.sym.Activation(conv_bn(mx.sym.var("data"), "stem", *net.stem, params), act_type="relu", name="stem_relu")
    for stage, blocks in enumerate((net.stage1, net.stage2, net.stage3), 1):
        for number, block in enumerate(blocks, 1):
            name = f"stage{stage}_block{number}"
            made = mx.sym.Activation(
                conv_bn(x, f"{name}_first", *block.first, params), act_type="relu", name=f"{name}_relu"
            )
            made = conv_bn(made, f"{name}_second", *block.second, params)
            if not isinstance(block.shortcut, torch.nn.Identity):
                x = conv_bn(x, f"{name}_shortcut", *block.shortcut, params)
            x = mx.sym.Activation(made + x, act_type="relu", name=f"{name}_out")
    x = mx.sym.Flatten(mx.sym.Pooling(x, global_pool=True, pool_type="avg", kernel=(8, 8), name="pool"))
    params |= {"classify_weight": net.classify.weight, "classify_bias": net.classify.bias}
    symbol = mx.sym.SoftmaxOutput(mx.sym.FullyConnected(x, num_hidden=10, name="classify"), name="softmax")
    return symbol, {name: mx.nd.array(array.detach().numpy()) for name, array in params.items()}


def main() -> None:
    net = tn.models.load("digits")
    symbol, params = network(net)
    states = set(symbol.list_auxiliary_states())
    images, _ = digits.load_test_set()
    x = digits.preprocess(images)
    given = {name: array for name, array in params.items() if name not in states}
    given |= {"data": mx.nd.array(x), "softmax_label": mx.nd.zeros(len(x))}
    bound = symbol.bind(mx.cpu(), given, aux_states={name: params[name] for name in states})
    (made,) = bound.forward(is_train=False)
    with torch.inference_mode():
        wanted = torch.softmax(net(torch.from_numpy(x)), 1).numpy()
    difference = np.abs(made.asnumpy() - wanted).max()
    if difference > 1e-5:
        raise SystemExit(f"MXNet and PyTorch differ by {difference:.1e}")
    mx.nd.save(
        str(HERE / f"{NAME}-0000.params"), {f"{'aux' if n in states else 'arg'}:{n}": a for n, a in params.items()}
    )
    symbol.save(str(HERE / f"{NAME}-symbol.json"))
    print(f"{NAME}: MXNet and PyTorch differ by {difference:.1e} at most, on {len(x)} pictures")


if __name__ == "__main__":
    main()
