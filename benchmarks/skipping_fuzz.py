"""Does a call that is skipped ever leave another trace than one that is made? Random training
scripts, each run under the probe with every call made and with calls skipped, and compared.

    XMEM_TEST_PYTHON=PYTHON python -m benchmarks.skipping_fuzz [--scripts 100] [--seed 0]
        [--keep FOLDER]

A script is drawn from its seed: a model, an optimizer, and what people put into a loop (evaluations,
accumulation, averages, hooks, graphs that are kept, batches that grow, parts that are frozen, …).
Its peaks by the allocator model must be within 2 % of those of the whole run, unless the trace says
what was taken for granted. The others are printed with their seeds and, with --keep, written to that
folder; the command then ends with status 1. No GPU is used.
"""

import argparse
import os
import random
import re
import sys
import tempfile
import textwrap
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.harness import probe, warm
from xmem_slurm.allocator.replay import replay
from xmem_slurm.units import MIB

SECONDS = 600
"""A budget that none of them spends: with one calls are skipped, without one all are made."""
TOLERANCE = 0.02
"""What peaks may differ by, as a share of the whole run's: blocks that are freed at once are so in
an order that means nothing, and the next ones are cut from others then."""
SEGMENT = 20 * MIB
"""Of reserved bytes one segment may be more or less (kLargeBuffer, c10/core/AllocatorConfig.h):
these models are small."""
FAILED = "fails where calls are skipped"
HEAD = """
import collections, copy, random, torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
random.seed(0)
"""
BLOCKS = {
    "linear": """
        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.one, self.two = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
                self.norm = nn.LayerNorm(width)
            def forward(self, x):
                return x + self.two(ACT(self.one(self.norm(x))))
        """,
    "attention": """
        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=DROP, batch_first=True)
            def forward(self, x):
                y = x.view(x.shape[0] // 8, 8, -1)
                return self.layer(y).view_as(x)
        """,
    "batch norm": """
        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.inner = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(INPLACE), nn.Dropout(DROP))
            def forward(self, x):
                return self.inner(x)
        """,
    "convolution": """
        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.conv = nn.Conv1d(8, 8, 3, padding=1)
                self.scale = nn.Parameter(torch.ones(width))
            def forward(self, x):
                return x + ACT(self.conv(x.view(x.shape[0] // 8, 8, -1)).view_as(x)) * self.scale
        """,
    "recurrent": """
        class Block(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.cell = nn.GRUCell(width, width)
            def forward(self, x):
                h = torch.zeros_like(x)
                for _ in range(3): h = self.cell(x, h)
                return h
        """,
}
BODIES = {
    "all": "for block in self.blocks: x = block(x)",
    "checkpointed": """
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.training else block(x)
        """,
    "some, by chance": """
        for block in self.blocks:
            if not self.training or random.random() < 0.8: x = block(x)
        """,
    "features kept": """
        self.features = []
        for block in self.blocks:
            x = block(x)
            self.features.append(x if self.keeps_graphs else x.detach())
        """,
    "early exit": """
        for number, block in enumerate(self.blocks):
            x = block(x)
            if number + 1 == self.depth: break
        """,
    "a running state": """
        for block in self.blocks: x = block(x)
        self.state = x.detach().mean(0) if self.state is None else 0.9 * self.state + 0.1 * x.detach().mean(0)
        """,
}
MODEL = """
class Net(nn.Module):
    def __init__(self, width, deep):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(deep)])
        self.head = nn.Linear(width, 10)
        self.depth, self.keeps_graphs, self.state = deep, False, None
    def forward(self, x, features=False):
BODY
        out = self.head(x)
        return RESULT
"""
RESULTS = ["out", "out", "(out, x) if features else out", "{'out': out, 'last': x.detach()}"]
OPTIMIZERS = [
    "torch.optim.SGD(P, 0.1)",
    "torch.optim.SGD(P, 0.1, momentum=0.9)",
    "torch.optim.Adam(P)",
    "torch.optim.AdamW(P)",
    "torch.optim.AdamW(P, foreach=False)",
    "torch.optim.AdamW(P, fused=True)",
    "torch.optim.RMSprop(P)",
    "torch.optim.Adagrad(P)",
]
STEPS = {
    "plain": """
        loss = loss_of(model, x)
        optimizer.zero_grad(NONE)
        loss.backward()
        optimizer.step()
        """,
    "accumulated": """
        (loss_of(model, x) / EVERY).backward()
        if step % EVERY == EVERY - 1:
            optimizer.step()
            optimizer.zero_grad(NONE)
        """,
    "clipped": """
        optimizer.zero_grad(NONE)
        loss = loss_of(model, x)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        """,
    "autocast": """
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(NONE)
        """,
    "scaled": """
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_of(model, x)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(NONE)
        """,
    "two losses of one call": """
        out = first(model(x))
        optimizer.zero_grad(NONE)
        out.square().mean().backward(retain_graph=True)
        out.abs().mean().backward()
        optimizer.step()
        """,
    "a penalty of the input's gradient": """
        x.requires_grad_()
        loss = loss_of(model, x)
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        optimizer.zero_grad(NONE)
        (loss + gradient.square().sum()).backward()
        optimizer.step()
        """,
    "two calls": """
        loss = F.mse_loss(first(model(x)), first(model(x + 0.1 * torch.randn_like(x))))
        optimizer.zero_grad(NONE)
        loss.backward()
        optimizer.step()
        """,
    "a teacher's": """
        with torch.no_grad(): target = first(teacher(x))
        loss = F.mse_loss(first(model(x)), target)
        optimizer.zero_grad(NONE)
        loss.backward()
        optimizer.step()
        """,
}
EXTRAS = {
    "evaluation": """
        if step % WHEN == WHEN - 1:
            model.eval()
            with GUARD: outs = [first(model(data(EVAL))) for _ in range(3)]
            model.train()
        """,
    "evaluation that is kept": """
        if step % WHEN == WHEN - 1:
            with GUARD: best.append(torch.cat([first(model(data(EVAL))) for _ in range(2)]))
        """,
    "outputs kept": "if step % 2: kept.append(first(model(x)).detach())",
    "graphs kept": "kept.append(first(model(x)).mean())",
    "a teacher that follows": """
        with torch.no_grad():
            for one, other in zip(teacher.parameters(), model.parameters()): one.lerp_(other, 0.01)
        """,
    "a teacher that is copied": "if step % WHEN == WHEN - 1: teacher = copy.deepcopy(model)",
    "frozen late": """
        if step == LATE:
            for parameter in model.blocks[0].parameters(): parameter.requires_grad_(False)
        """,
    "thawed late": """
        if step == 0:
            for parameter in model.blocks[-1].parameters(): parameter.requires_grad_(False)
        if step == LATE:
            for parameter in model.parameters(): parameter.requires_grad_(True)
        """,
    "another optimizer late": "if step == LATE: optimizer = OTHER",
    "a hook late": """
        if step == LATE: handle = model.blocks[0].register_forward_hook(lambda m, a, out: seen.append(out.detach()))
        if step == LATE + 6: handle.remove(); seen.clear()
        """,
    "a snapshot": """
        if step % WHEN == WHEN - 1: best = [copy.deepcopy(model.state_dict())]
        """,
    "back to a snapshot": """
        if step == 5: start = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step == LATE: model.load_state_dict(start[0]); optimizer.load_state_dict(start[1])
        """,
    "the cache emptied": "if step % WHEN == WHEN - 1: torch.cuda.empty_cache()",
    "less depth late": "model.depth = 1 if step < LATE else len(model.blocks)",
    "graphs of features late": "model.keeps_graphs = step >= LATE",
    "a queue": """
        queue.append(first(model(x)).detach())
        if len(queue) == queue.maxlen: queue_loss = torch.cat(list(queue)).square().mean()
        """,
    "a memory that grows": """
        memory = x[:16] if memory is None else torch.cat([memory, x[:16]])
        if memory.shape[0] > 2048: memory = memory[-1024:].clone()
        """,
    "the model made anew": """
        if step == LATE:
            model = Net(WIDTH, DEEP).cuda()
            optimizer = OPTIMIZER
        """,
    "gradients kept": "before = [p.grad.clone() for p in model.parameters() if p.grad is not None]",
    "generated": """
        if step % WHEN == WHEN - 1:
            with GUARD:
                y = data(8)
                for _ in range(20): y = torch.cat([y, first(model(y)).repeat(1, WIDTH // 10 + 1)[:8, :WIDTH]])
        """,
    "frozen statistics": "if step == LATE: model.blocks.eval()",
    "in bfloat16 late": """
        if step == LATE:
            half = copy.deepcopy(model).bfloat16()
            with torch.no_grad(): first(half(data(EVAL).bfloat16()))
        """,
    "graphs over two steps": """
        carried = first(model(x if carried is None else x + carried.detach().mean())) if step % 2 else carried
        """,
    "a weight added": """
        if step == LATE:
            model.blocks.append(Block(WIDTH).cuda())
            optimizer.add_param_group({"params": list(model.blocks[-1].parameters())})
        """,
}
BATCHES = [
    "ROWS",
    "ROWS",
    "ROWS",
    "ROWS if step < LATE else 2 * ROWS",
    "ROWS * (1 + step // 10)",
    "random.choice([ROWS, ROWS // 2, 2 * ROWS])",
    "random.randrange(8, ROWS, 8)",
    "ROWS if step % 10 else 4 * ROWS",
]
LOOP = """
def first(out):
    return out["out"] if isinstance(out, dict) else out[0] if isinstance(out, tuple) else out
def data(rows):
    return torch.randn(rows, WIDTH, device="cuda")
def loss_of(net, x):
    return F.cross_entropy(first(net(x)), torch.zeros(x.shape[0], dtype=torch.long, device="cuda"))
model = Net(WIDTH, DEEP).cuda()
teacher = copy.deepcopy(model)
optimizer = OPTIMIZER
scaler = torch.amp.GradScaler("cuda")
kept, best, seen, queue, memory, carried = collections.deque(maxlen=KEPT), [], [], collections.deque(maxlen=8), None, None
for step in range(STEPS):
    x = data(BATCH)
"""


def draw(seed: int) -> str:
    """Return the script of this seed."""
    dice = random.Random(seed)
    body = textwrap.indent(textwrap.dedent(dice.choice([*BODIES.values()])).strip("\n"), 8 * " ")
    extras = dice.sample([*EXTRAS.values()], dice.choice([0, 1, 1, 2, 2, 3, 4]))
    before = dice.randrange(len(extras) + 1)
    lines = [*extras[:before], dice.choice([*STEPS.values()]), *extras[before:]]
    loop = "".join(
        textwrap.indent(textwrap.dedent(part).strip("\n"), 4 * " ") + "\n" for part in lines
    )
    text = HEAD + textwrap.dedent(dice.choice([*BLOCKS.values()])) + MODEL.replace("BODY", body)
    text += LOOP + loop
    optimizer = dice.choice(OPTIMIZERS)
    words = {
        "BATCH": dice.choice(BATCHES),
        "ROWS": dice.choice([64, 256, 1024]),
        "RESULT": dice.choice(RESULTS),
        "OTHER": dice.choice(OPTIMIZERS),
        "OPTIMIZER": optimizer,
        "STEPS": dice.choice([30, 60, 90]),
        "WIDTH": dice.choice([64, 256, 512]),
        "DEEP": dice.choice([2, 4, 8]),
        "ACT": dice.choice(["F.relu", "F.gelu", "torch.tanh", "F.silu"]),
        "DROP": dice.choice([0.0, 0.1]),
        "INPLACE": dice.choice([True, False]),
        "NONE": dice.choice([True, True, False]),
        "GUARD": dice.choice(["torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()"]),
        "EVAL": dice.choice([64, 256, 2048]),
        "EVERY": dice.choice([2, 4]),
        "WHEN": dice.choice([3, 10, 25]),
        "LATE": dice.choice([10, 20, 25]),
        "KEPT": dice.choice([2, 8, 1000]),
    }
    for word, value in words.items():
        text = re.sub(rf"\b{word}\b", str(value), text)
    return text.replace("(P", "(model.parameters()")


class Verdict(NamedTuple):
    """What came of a script: shares of the whole run's peaks, by how many reserved bytes they are
    off, and what the trace takes for granted.
    """

    seed: int
    allocated: float = 0
    reserved: float = 0
    reserved_off: int = 0
    said: tuple[str, ...] = ()
    error: str = ""

    @property
    def outcome(self) -> str:
        """Say in a word whether the two runs agree."""
        if self.error:
            return self.error.partition(":")[0]
        shares = [self.allocated]
        if self.reserved_off > SEGMENT:
            shares.append(self.reserved)
        if all(abs(share - 1) <= TOLERANCE for share in shares):
            return "the same"
        if self.said:
            return "said to be unsure"
        return "too low" if min(shares) < 1 - TOLERANCE else "too high"


def compare(seed: int, python: Path, stand_ins: Path) -> Verdict:
    """Run the script of a seed both ways."""
    with tempfile.TemporaryDirectory(prefix="skipping-") as folder:
        run = probe.runs(python, stand_ins, Path(folder))
        whole, skipping = run(draw(seed)), run(draw(seed), seconds=SECONDS)
    for ran, fails in ((whole, "does not run"), (skipping, FAILED)):
        if ran.returncode:
            return Verdict(seed, error=f"{fails}: {ran.stderr.strip().splitlines()[-1]}")
    made, skipped = replay(whole.traces[0]), replay(skipping.traces[-1])
    return Verdict(
        seed,
        skipped.peak_allocated_bytes / made.peak_allocated_bytes,
        skipped.peak_reserved_bytes / made.peak_reserved_bytes,
        abs(skipped.peak_reserved_bytes - made.peak_reserved_bytes),
        tuple(doubt.detail for doubt in skipping.traces[-1].doubts if doubt.code == "skipped"),
    )


def main() -> None:
    """Compare as many as asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scripts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    job_python = Path(os.environ["XMEM_TEST_PYTHON"])
    stand_ins = probe.stand_ins(job_python)
    outcomes = Counter[str]()
    seeds = range(asked.seed, asked.seed + asked.scripts)
    with (
        tempfile.TemporaryDirectory(prefix="warm-") as folder,
        ThreadPoolExecutor(asked.processes) as pool,
    ):
        python = warm.installed(
            job_python, Path(folder, "warm"), Path(folder, "servers"), os.getpid()
        )
        for verdict in pool.map(lambda seed: compare(seed, python, stand_ins), seeds):
            outcomes[verdict.outcome] += 1
            if verdict.outcome != "the same":
                print(verdict.outcome, verdict, flush=True)
                if asked.keep is not None:
                    (asked.keep / f"{verdict.seed}.py").write_text(draw(verdict.seed))
    print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    sys.exit(any(outcomes[fault] for fault in ("too low", "too high", FAILED)))


if __name__ == "__main__":
    main()
