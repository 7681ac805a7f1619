"""What would other tools say of the published runs? A job's Python (torch 2.4 or newer) asks them,
and runs no kernel.

    python rivals.py < RUNS      a JSON object a line: {key, model, optimizer, batch_size,
                                 zero_grad_mode}

memtracker  torch.distributed._tools.mem_tracker.MemTracker around the whole training loop, on fake
tensors accelerate  what `accelerate estimate-memory` says of training in float32: four times
parameters and buffers, whatever
            the batch and the optimizer. Source: `estimate_training_usage` in
            accelerate/commands/estimate.py (1.6.0)
static      DNNMem's kind of sum over the static graph: weights, gradients, optimizer state, every
            output of the forward pass; nothing is freed, nothing is temporary
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parent))

import published
from models import build, is_image_model


class Answers(TorchDispatchMode):
    """Answers what fake tensors cannot: a number that is read is one. While `counting`, it adds up
    what is made.
    """

    def __init__(self):
        super().__init__()
        self.counting = False
        self.made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - has no other name
            return 1.0 if args[0].is_floating_point() else 1
        result = func(*args, **(kwargs or {}))
        if self.counting and not func.is_view and not func._schema.is_mutable:  # noqa: SLF001
            self.made += bytes_of(tree_leaves(result))
        return result


def bytes_of(values):
    return sum(
        each.numel() * each.element_size() for each in values if isinstance(each, torch.Tensor)
    )


def fake(model, mode):
    """Give a model fake tensors for its own; it is built on real ones, as some compute with what
    they make.
    """
    faked = {}
    for module in model.modules():
        for own in (module._parameters, module._buffers):  # noqa: SLF001 - by whatever name they have
            for name, tensor in own.items():
                if tensor is not None and id(tensor) not in faked:
                    copy = mode.from_tensor(tensor.detach())
                    faked[id(tensor)] = (
                        torch.nn.Parameter(copy) if isinstance(tensor, torch.nn.Parameter) else copy
                    )
                own[name] = None if tensor is None else faked[id(tensor)]


def ask(run):
    """Return the bytes that each tool expects, and the seconds that all of them took."""
    started, answers, tracker, optimizers = time.monotonic(), Answers(), MemTracker(), []

    def optimizer_class(*args, **kwargs):
        optimizers.append(getattr(torch.optim, run["optimizer"])(*args, **kwargs))
        # it wants that of who goes on
        optimizers[-1].register_step_post_hook(lambda *_: tracker.reset_mod_stats())
        return optimizers[-1]

    model = build(run["model"], as_xmem=True)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, answers:
        fake(model, mode)
        forward = model.forward
        # It would read a random number to drop none of its layers, and the answer here would be to
        # drop all.
        never_dropping = [
            module for module in model.modules() if getattr(module, "layerdrop", None) == 0
        ]

        def counted(*args, **kwargs):
            for module in never_dropping:
                module.training = False
            answers.counting, answers.made = True, 0
            outputs = forward(*args, **kwargs)
            answers.counting = False
            return outputs

        model.forward = counted
        train = published.train_images if is_image_model(run["model"]) else published.train_text
        with tracker:
            train(
                model,
                optimizer_class,
                run["batch_size"],
                int(run["zero_grad_mode"].replace("null", "0")),
            )
        weights = bytes_of([*model.parameters(), *model.buffers()])
        states = bytes_of(tree_leaves(list(optimizers[0].state.values())))
    peaks = [
        each["Total"]
        for device, each in tracker.get_tracker_snapshot("peak").items()
        if device.type == "cuda"
    ]
    return {
        "key": run["key"],
        "memtracker": max(peaks),
        "accelerate": 4 * weights,
        "static": weights + bytes_of(model.parameters()) + states + answers.made,
        "seconds": round(time.monotonic() - started, 2),
    }


def main():
    published.IMAGE_STEPS = published.TEXT_STEPS = 2  # the second one is whole
    # a fake tensor's device is no part of its data
    torch.__future__.set_swap_module_params_on_conversion(True)
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(ask(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
