"""Train the course's language model and write its files beside this script: `python data/lm/train.py`.

Takes about 40 minutes on one core. The text is the source of this Python's standard library, so that nothing is
downloaded; another Python has another text. A checkpoint is written every two minutes: the same command goes on from
there, also with another number of steps, since the learning rate depends on the share of them that is done. The seed is
fixed, but another CPU, thread count or PyTorch rounds differently and gives slightly different weights.
"""

import argparse
import json
import math
import os
import platform
import sysconfig
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tvmnotes import data
from tvmnotes.language import Decoder
from tvmnotes.tokens import BytePairs

HERE = Path(__file__).parent
CHECKPOINT = HERE.parents[1] / "out" / "lm_checkpoint.pt"
SEED = 0
VOCABULARY = 1024
STEPS = 4500
BATCH = 16  # sequences in a step
PART = 4  # of them at once: what they need fits into a core's cache better
CHECKPOINT_SECONDS = 120

# Tests are written for other readers, and tables and topics of the manual hold little Python.
LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "encodings", "pydoc_data", "__pycache__"}


def files() -> dict[str, str]:
    """The text of each file of the standard library, by path, sorted, without what is LEFT_OUT or made by a build."""
    root = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    kept = [path for path in paths if not LEFT_OUT & set(path.split("/")) and not path.startswith("_sysconfigdata")]
    return {path: (root / path).read_text(encoding="utf-8", errors="replace") for path in kept}


def split(paths: list[str]) -> tuple[list[str], list[str]]:
    """The paths for training, and every twentieth, from the tenth on, which is held out."""
    held_out = paths[10::20]
    return [path for path in paths if path not in held_out], held_out


def joined(texts: dict[str, str], paths: list[str]) -> str:
    """One text of several files, with three line breaks between them."""
    return "\n\n\n".join(texts[path].strip() for path in paths)


def optimizers(net: Decoder) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the blocks, AdamW for the embedding and the norms.

    Muon makes a step of equal size in each direction of a matrix, and needs fewer steps than AdamW here. Source: Jordan
    and others, "Muon: an optimizer for hidden layers in neural networks", 2024.
    """
    matrices = [p for p in net.blocks.parameters() if p.ndim == 2]
    others = [p for p in net.parameters() if not any(p is matrix for matrix in matrices)]
    made = [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1, momentum=0.95),
        torch.optim.AdamW(others, lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for optimizer in made:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return made


def learning_rate(done: float) -> float:
    """The learning rate as a share of its peak, when this share of the steps is done: 4 % warm-up, then a cosine."""
    return min(done / 0.04, 0.5 + 0.5 * math.cos(math.pi * done))


def crops(tokens: Tensor, length: int, step: int, batch: int) -> Tensor:
    """The batch of a step: int64 (batch, length + 1) from random places, which the seed and the step determine."""
    generator = torch.Generator().manual_seed(SEED + 1_000_003 * step)
    starts = torch.randint(len(tokens) - length, (batch,), generator=generator)
    return tokens[starts[:, None] + torch.arange(length + 1)].long()


def loss_of(net: nn.Module, sequences: Tensor) -> Tensor:
    """The mean of -log(probability) over each token but the first of each sequence; products in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = net(sequences[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), sequences[:, 1:].flatten())


def train(net: Decoder, tokens: Tensor, steps: int, batch=BATCH, checkpoint: Path | None = None, watch=None) -> list:
    """Train up to `steps`, from the checkpoint if there is one.

    Args:
        net: The network, which is changed.
        tokens: The text, int (n,).
        steps: How many steps make a whole training.
        batch: Sequences in a step.
        checkpoint: The file to go on from and to write to; None: none.
        watch: Called with step and the mean loss since the last call, at each checkpoint and at the end.

    Returns:
        The loss of each step made here.
    """
    made = optimizers(net)
    losses = []
    first = shown = 0
    if checkpoint is not None and checkpoint.is_file():
        state = torch.load(checkpoint, weights_only=True)
        first = state["step"]
        net.load_state_dict(state["net"])
        for optimizer, saved in zip(made, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
    length = len(net.positions)
    last = time.monotonic()
    net.train()
    for step in range(first, steps):
        for optimizer in made:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * learning_rate((step + 1) / steps)
        total = 0.0
        for part in crops(tokens, length, step, batch).split(PART):
            loss = loss_of(net, part) * (len(part) / batch)
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for optimizer in made:
            optimizer.step()
        losses.append(total)
        if time.monotonic() - last < CHECKPOINT_SECONDS and step + 1 < steps:
            continue
        last = time.monotonic()
        if checkpoint is not None:
            checkpoint.parent.mkdir(exist_ok=True)
            states = [optimizer.state_dict() for optimizer in made]
            with data.atomic_path(checkpoint) as part:
                torch.save({"step": step + 1, "net": net.state_dict(), "optimizers": states}, part)
        if watch is not None:
            watch(step + 1, float(np.mean(losses[shown:])))
        shown = len(losses)
    net.eval()
    return losses


@torch.no_grad()
def bits_per_character(net: Decoder, tokens: Tensor, tokenizer: BytePairs, most: int | None = None) -> float:
    """-log2(probability) of a text, per character, read in windows of the network's length, at most so many."""
    length = len(net.positions)
    count = min((len(tokens) - 1) // length, most or len(tokens))
    windows = tokens[: count * length].view(count, length), tokens[1 : count * length + 1].view(count, length)
    total = 0.0
    for inputs, targets in zip(windows[0].split(PART), windows[1].split(PART), strict=True):
        logits = net(inputs.long()).flatten(0, 1)
        total += F.cross_entropy(logits, targets.long().flatten(), reduction="sum").item()
    return total / math.log(2) / len(tokenizer.decode(windows[1].flatten().tolist()))


def save(net: Decoder, facts: dict, folder: Path) -> None:
    """Write the weights in half precision, and the facts, the tokenizer's merges among them."""
    weights = {name: weight.half().numpy() for name, weight in net.state_dict().items()}
    with TemporaryDirectory(dir=folder) as new:
        np.savez(Path(new) / "tiny_lm.npz", **weights)
        (Path(new) / "tiny_lm.json").write_text(json.dumps(facts) + "\n")
        for path in sorted(Path(new).iterdir()):
            print(f"{path.name}: {path.stat().st_size:,} bytes")
            os.replace(path, folder / path.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    arguments = parser.parse_args()

    texts = files()
    training, held_out = split(list(texts))
    text, unseen = joined(texts, training), joined(texts, held_out)
    tokenizer = BytePairs.learn(text, VOCABULARY)
    tokens, test = (torch.tensor(tokenizer.encode(each), dtype=torch.int32) for each in (text, unseen))
    per_token = len(text) / len(tokens)
    print(f"{len(training)} files, {len(text):,} characters, {len(tokens):,} tokens of {per_token:.2f} characters")

    torch.manual_seed(SEED)
    net = Decoder(vocabulary=VOCABULARY)
    parameters = sum(p.numel() for p in net.parameters())
    print(f"{parameters:,} parameters; held out: {', '.join(held_out)}", flush=True)
    start = time.monotonic()

    def watch(step: int, loss: float) -> None:
        seen, bits = loss / math.log(2) / per_token, bits_per_character(net, test, tokenizer, most=64)
        minutes = (time.monotonic() - start) / 60
        print(f"step {step:5}  bits per character {seen:.3f}, held out {bits:.3f}  {minutes:5.1f} min", flush=True)

    train(net, tokens, arguments.steps, checkpoint=arguments.checkpoint, watch=watch)

    net.load_state_dict({name: weight.half().float() for name, weight in net.state_dict().items()})  # as they are kept
    bits = bits_per_character(net, test, tokenizer)
    facts = {
        "text": f"the standard library of Python {platform.python_version()}",
        "files": len(training),
        "characters": len(text),
        "tokens": len(tokens),
        "held_out": held_out,
        "held_out_bits_per_character": round(bits, 4),
        "parameters": parameters,
        "steps": arguments.steps,
        "tokens_per_step": BATCH * len(net.positions),
        "merges": tokenizer.merges,
    }
    save(net, facts, HERE)
    print(f"done: {bits:.4f} bits per character of {len(unseen):,} held-out characters")


if __name__ == "__main__":
    main()
