"""How much scratch does cuDNN ask for a recurrent network? Its answers on a GPU, to many questions as torch puts them.

    python -m benchmarks.cudnn_rnn_on_gpu [--questions 6000]     on a GPU

writes benchmarks/data/cudnn_rnn_on_gpu.json.gz: {gpu, cudnn, fields, rows}. Nothing is computed. Descriptors are those
of torch's aten/src/ATen/cudnn/Descriptors.h and native/cudnn/RNN.cpp (2.4 to 2.15). Needs torch, and this file.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import random
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent / "data" / "cudnn_rnn_on_gpu.json.gz"
FIELDS = (
    "cell", "layers", "directions", "input", "hidden", "projection", "batch", "steps", "type", "math", "algorithm",
    "dropout", "packed", "training", "weights", "workspace", "reserve",
)  # fmt: skip
"""The last three are bytes, -1 where cuDNN does not support it; the others are cuDNN's own numbers or counts."""
RELU, TANH, LSTM, GRU = range(4)
FLOAT, HALF, BFLOAT16 = 0, 2, 9
STANDARD, PERSIST_STATIC, PERSIST_SMALL = 0, 1, 3
DEFAULT_MATH, TENSOR_MATH, FMA_MATH = 0, 1, 3
USUAL = (1, 8, 16, 20, 28, 32, 50, 64, 100, 128, 150, 200, 256, 300, 400, 512, 650, 768, 1000, 1024, 1150, 1500, 2048)


class Cudnn:
    """The library that torch has loaded, with one handle."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcudnn.so.9")
        self.handle = self.made("cudnnCreate")
        self.dropouts = {}

    def made(self, function: str) -> ctypes.c_void_p:
        """Return what a function of this name makes."""
        made = ctypes.c_void_p()
        self.call(function, ctypes.byref(made))
        return made

    def call(self, function: str, *arguments: Any) -> None:
        """Call it.

        Raises:
            ValueError: with cuDNN's status.
        """
        status = getattr(self.library, function)(*arguments)
        if status:
            raise ValueError(f"{function}: {status}")

    def dropout(self, share: float) -> ctypes.c_void_p:
        """Return a descriptor that drops so much; its states are never used."""
        if share not in self.dropouts:
            descriptor = self.made("cudnnCreateDropoutDescriptor")
            size = ctypes.c_size_t()
            self.call("cudnnDropoutGetStatesSize", self.handle, ctypes.byref(size))
            import torch  # noqa: PLC0415 - after the parser

            states = torch.empty(size.value, dtype=torch.uint8, device="cuda")
            self.call(
                "cudnnSetDropoutDescriptor", descriptor, self.handle, ctypes.c_float(share),
                ctypes.c_void_p(states.data_ptr()), size, ctypes.c_ulonglong(0),
            )  # fmt: skip
            self.dropouts[share] = descriptor, states
        return self.dropouts[share][0]

    def answer(self, question: dict[str, int]) -> tuple[int, int, int]:
        """Return the bytes of weights, workspace and reserve; -1 for each where cuDNN knows no way."""
        made = []
        try:
            rnn = self.made("cudnnCreateRNNDescriptor")
            made.append(("cudnnDestroyRNNDescriptor", rnn))
            data = self.made("cudnnCreateRNNDataDescriptor")
            made.append(("cudnnDestroyRNNDataDescriptor", data))
            return self._answer(question, rnn, data)
        except ValueError:
            return -1, -1, -1
        finally:
            for destroy, each in made:
                self.call(destroy, each)

    def _answer(self, q: dict[str, int], rnn: ctypes.c_void_p, data: ctypes.c_void_p) -> tuple[int, int, int]:
        precise = FLOAT if q["type"] in (HALF, BFLOAT16) else q["type"]
        self.call(
            "cudnnSetRNNDescriptor_v8", rnn, q["algorithm"], q["cell"], 2, q["directions"] - 1, 0, q["type"], precise,
            q["math"], q["input"], q["hidden"], q["projection"] or q["hidden"], q["layers"],
            self.dropout(q["dropout"] / 100), 0 if q["packed"] else 1,
        )  # fmt: skip
        lengths = (ctypes.c_int * q["batch"])(*[q["steps"]] * q["batch"])
        filling = ctypes.c_double(0)
        self.call(
            "cudnnSetRNNDataDescriptor", data, q["type"], 1 if q["packed"] else 0, q["steps"], q["batch"], q["input"],
            lengths, ctypes.byref(filling),
        )  # fmt: skip
        weights, workspace, reserve = (ctypes.c_size_t() for _ in range(3))
        self.call("cudnnGetRNNWeightSpaceSize", self.handle, rnn, ctypes.byref(weights))
        self.call(
            "cudnnGetRNNTempSpaceSizes", self.handle, rnn, q["training"], data, ctypes.byref(workspace),
            ctypes.byref(reserve),
        )  # fmt: skip
        return weights.value, workspace.value, reserve.value


def questions(count: int) -> list[dict[str, int]]:
    """Return so many different networks, drawn with a fixed seed."""
    dice = random.Random(0)
    found: list[dict[str, int]] = []
    while len(found) < count:
        sizes = USUAL if dice.random() < 0.6 else range(1, 1100)
        cell, kind = dice.choice((RELU, TANH, LSTM, LSTM, LSTM, GRU, GRU)), dice.choice((FLOAT, FLOAT, HALF, BFLOAT16))
        hidden = dice.choice(sizes)
        projected = cell == LSTM and hidden > 1 and dice.random() < 0.08
        found.append(
            {
                "cell": cell,
                "layers": dice.choice((1, 1, 2, 2, 3, 4, 6)),
                "directions": dice.choice((1, 1, 2)),
                "input": hidden if dice.random() < 0.3 else dice.choice(sizes),
                "hidden": hidden,
                "projection": dice.randrange(1, hidden) if projected else 0,
                "batch": dice.choice((1, 2, 3, 8, 10, 16, 20, 32, 50, 64, 77, 80, 100, 128, 200, 256, 512)),
                "steps": dice.choice((1, 2, 5, 10, 28, 32, 35, 50, 64, 70, 100, 128, 200, 256, 500)),
                "type": kind,
                "math": dice.choice((DEFAULT_MATH, FMA_MATH)) if kind == FLOAT else DEFAULT_MATH,
                "algorithm": dice.choice((STANDARD, PERSIST_STATIC, PERSIST_SMALL)) if kind == HALF else STANDARD,
                "dropout": dice.choice((0, 0, 20, 50)),
                "packed": int(dice.random() < 0.3),
                "training": int(dice.random() < 0.75),
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Ask cuDNN on a GPU for the scratch of recurrent networks")
    parser.add_argument("--questions", type=int, default=6000)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    import torch  # noqa: PLC0415 - it takes seconds

    version = torch.backends.cudnn.version()  # loads the library
    torch.zeros(1, device="cuda")
    cudnn = Cudnn()
    rows = [[*question.values(), *cudnn.answer(question)] for question in questions(arguments.questions)]
    found = {"gpu": torch.cuda.get_device_name(), "cudnn": version, "fields": FIELDS, "rows": rows}
    with gzip.open(arguments.out, "wt", encoding="utf-8") as file:
        json.dump(found, file, separators=(",", ":"))
    print(f"{len(rows)} questions, {sum(row[-1] >= 0 for row in rows)} answered")
    return 0


if __name__ == "__main__":
    sys.exit(main())
