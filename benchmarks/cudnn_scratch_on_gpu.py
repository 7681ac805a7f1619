"""How much scratch does cuDNN ask for recurrent networks and batch norm? Its answers on a GPU,
asked as torch does it.

    python -m benchmarks.cudnn_scratch_on_gpu [--questions 9000]      on a GPU: ask
    python -m benchmarks.cudnn_scratch_on_gpu --stand-ins FOLDER      anywhere: ask the stand-ins there the same

The first writes benchmarks/data/cudnn_scratch_on_gpu.json.gz: {gpu, cudnn, rnn: {fields, rows},
batchnorm: {fields, rows}}. Nothing is computed. Descriptors are those of torch's
aten/src/ATen/cudnn/Descriptors.h, native/cudnn/RNN.cpp and native/cudnn/BatchNorm.cpp (2.4 to
2.15). Needs torch, and this file.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import itertools
import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OUT = Path(__file__).parent / "data" / "cudnn_scratch_on_gpu.json.gz"
RNN_FIELDS = (
    "cell", "layers", "directions", "input", "hidden", "projection", "batch", "steps", "type",
    "math", "algorithm",
    "dropout", "packed", "training", "weights", "workspace", "reserve",
)  # fmt: skip
"""The last three are bytes, -1 where cuDNN does not support it; the others are cuDNN's own numbers
or counts."""
BATCHNORM_FIELDS = (
    "type", "channels_last", "dimensions", "batch", "channels", "height", "width", "forward",
    "backward", "reserve",
)  # fmt: skip
RELU, TANH, LSTM, GRU = range(4)
FLOAT, HALF, BFLOAT16 = 0, 2, 9
BLOCK = 512
"""Bytes that torch's allocator rounds up to (kMinBlockSize, c10/core/AllocatorConfig.h)."""
STANDARD, PERSIST_STATIC, PERSIST_SMALL = 0, 1, 3
DEFAULT_MATH, FMA_MATH = 0, 3
USUAL = (
    1,
    8,
    16,
    20,
    28,
    32,
    50,
    64,
    100,
    128,
    150,
    200,
    256,
    300,
    400,
    512,
    650,
    768,
    1000,
    1024,
    1150,
    1500,
    2048,
)
HEADINGS = ("of", "size", "questions", "less by blocks", "within 1 %", "95 of 100 within", "most")
ALGORITHMS = {0: "standard", 1: "persistent", 3: "persistent, small"}


class Cudnn:
    """A libcudnn that is mapped, with one handle. `room` gives the address of so many bytes on the
    GPU.
    """

    def __init__(self, library: str, room: Callable[[int], int]) -> None:
        self.library = ctypes.CDLL(library)
        self.room = room
        self.handle = self.made("cudnnCreate")
        self.dropouts: dict[float, ctypes.c_void_p] = {}

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
            self.call(
                "cudnnSetDropoutDescriptor", descriptor, self.handle, ctypes.c_float(share),
                ctypes.c_void_p(self.room(size.value)), size, ctypes.c_ulonglong(0),
            )  # fmt: skip
            self.dropouts[share] = descriptor
        return self.dropouts[share]

    def batchnorm(self, q: dict[str, int]) -> tuple[int, int, int]:
        """Return the bytes of both workspaces and the reserve, -1 for all where cuDNN knows no
        way.
        """
        made = [self.made("cudnnCreateTensorDescriptor") for _ in range(2)]
        x, scale = made
        sizes = [q["batch"], q["channels"], q["height"], q["width"]]
        places = q["height"] * q["width"]
        strides = [q["channels"] * places, places, q["width"], 1]
        if q["channels_last"]:
            strides = [q["channels"] * places, 1, q["width"] * q["channels"], q["channels"]]
        if q["dimensions"] == 5:  # the depth is as the height
            sizes.insert(2, q["height"])
            strides = [each * (q["height"] if at == 0 else 1) for at, each in enumerate(strides)]
            strides.insert(2, strides[2] * q["height"])
            if not q["channels_last"]:
                strides[1] *= q["height"]
        mode = 2 if q["channels_last"] else 1
        try:
            array = ctypes.c_int * len(sizes)
            self.call(
                "cudnnSetTensorNdDescriptor",
                x,
                q["type"],
                len(sizes),
                array(*sizes),
                array(*strides),
            )
            ones = [1, q["channels"], *(1,) * (len(sizes) - 2)]
            packed = array(q["channels"], *ones[2:], 1)
            self.call("cudnnSetTensorNdDescriptor", scale, FLOAT, len(ones), array(*ones), packed)
            found = [ctypes.c_size_t() for _ in range(3)]
            self.call(
                "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize", self.handle, mode, 0,
                x, None, x, scale,
                None, ctypes.byref(found[0]),
            )  # fmt: skip
            self.call(
                "cudnnGetBatchNormalizationBackwardExWorkspaceSize", self.handle, mode, 0, x, None,
                x, None, x, scale,
                None, ctypes.byref(found[1]),
            )  # fmt: skip
            self.call(
                "cudnnGetBatchNormalizationTrainingExReserveSpaceSize", self.handle, mode, 0, None,
                x,
                ctypes.byref(found[2]),
            )  # fmt: skip
            return found[0].value, found[1].value, found[2].value
        except ValueError:
            return -1, -1, -1
        finally:
            for each in made:
                self.call("cudnnDestroyTensorDescriptor", each)

    def answer(self, question: dict[str, int]) -> tuple[int, int, int]:
        """Return the bytes of weights, workspace and reserve; -1 for each where cuDNN knows no
        way.
        """
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

    def _answer(
        self, q: dict[str, int], rnn: ctypes.c_void_p, data: ctypes.c_void_p
    ) -> tuple[int, int, int]:
        precise = FLOAT if q["type"] in (HALF, BFLOAT16) else q["type"]
        self.call(
            "cudnnSetRNNDescriptor_v8", rnn, q["algorithm"], q["cell"], 2, q["directions"] - 1, 0,
            q["type"], precise,
            q["math"], q["input"], q["hidden"], q["projection"] or q["hidden"], q["layers"],
            self.dropout(q["dropout"] / 100), 0 if q["packed"] else 1,
        )  # fmt: skip
        lengths = (ctypes.c_int * q["batch"])(*[q["steps"]] * q["batch"])
        filling = ctypes.c_double(0)
        self.call(
            "cudnnSetRNNDataDescriptor", data, q["type"], 1 if q["packed"] else 0, q["steps"],
            q["batch"], q["input"],
            lengths, ctypes.byref(filling),
        )  # fmt: skip
        weights, workspace, reserve = (ctypes.c_size_t() for _ in range(3))
        self.call("cudnnGetRNNWeightSpaceSize", self.handle, rnn, ctypes.byref(weights))
        self.call(
            "cudnnGetRNNTempSpaceSizes", self.handle, rnn, q["training"], data,
            ctypes.byref(workspace),
            ctypes.byref(reserve),
        )  # fmt: skip
        return weights.value, workspace.value, reserve.value


def questions(count: int) -> list[dict[str, int]]:
    """Return so many different networks, drawn with a fixed seed."""
    dice = random.Random(0)
    found: list[dict[str, int]] = []
    while len(found) < count:
        sizes = USUAL if dice.random() < 0.6 else range(1, 1100)
        cell = dice.choice((RELU, TANH, LSTM, LSTM, LSTM, GRU, GRU))
        kind = dice.choice((FLOAT, FLOAT, HALF, BFLOAT16))
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
                "batch": dice.choice(
                    (1, 2, 3, 8, 10, 16, 20, 32, 50, 64, 77, 80, 100, 128, 200, 256, 512)
                ),
                "steps": dice.choice(
                    (1, 2, 5, 10, 28, 32, 35, 50, 64, 70, 100, 128, 200, 256, 500)
                ),
                "type": kind,
                "math": dice.choice((DEFAULT_MATH, FMA_MATH)) if kind == FLOAT else DEFAULT_MATH,
                "algorithm": dice.choice((STANDARD, PERSIST_STATIC, PERSIST_SMALL))
                if kind == HALF
                else STANDARD,
                "dropout": dice.choice((0, 0, 20, 50)),
                "packed": int(dice.random() < 0.3),
                "training": int(dice.random() < 0.75),
            }
        )
    return found


def variations() -> list[dict[str, int]]:
    """Return networks of which each differs from a usual one in one number."""
    usual = {
        "layers": 2,
        "directions": 1,
        "input": 96,
        "hidden": 128,
        "projection": 0,
        "batch": 16,
        "steps": 20,
    }
    changes = {
        "layers": (1, 3, 4, 5, 8),
        "directions": (2,),
        "input": (1, 8, 32, 64, 97, 128, 200, 512, 1024),
        "hidden": (
            1,
            7,
            8,
            16,
            31,
            32,
            64,
            96,
            127,
            129,
            192,
            256,
            384,
            512,
            640,
            768,
            1024,
            1536,
            2048,
        ),
        "projection": (8, 64, 100),
        "batch": (1, 2, 3, 5, 8, 9, 15, 17, 24, 32, 33, 64, 96, 128, 256, 1024),
        "steps": (1, 2, 3, 7, 10, 19, 21, 40, 64, 100, 1000),
    }
    different = [
        usual,
        *({**usual, name: value} for name, values in changes.items() for value in values),
    ]
    found = []
    for base, cell, (kind, algorithm), training, dropout in itertools.product(
        different,
        (RELU, TANH, LSTM, GRU),
        (
            (FLOAT, STANDARD),
            (HALF, STANDARD),
            (HALF, PERSIST_STATIC),
            (HALF, PERSIST_SMALL),
            (BFLOAT16, STANDARD),
        ),
        (0, 1),
        (0, 20),
    ):
        if base["projection"] and cell != LSTM:
            continue
        rest = {
            "type": kind,
            "math": DEFAULT_MATH,
            "algorithm": algorithm,
            "dropout": dropout,
            "packed": 0,
        }
        found.append({"cell": cell, **base, **rest, "training": training})
    return found


def batchnorm_questions() -> list[dict[str, int]]:
    """Return inputs of batch norm, drawn with a fixed seed."""
    dice, found = random.Random(1), []
    for _ in range(2000):
        height = dice.choice((1, 2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224))
        dimensions = dice.choice((4, 4, 4, 5)) if height <= 32 else 4
        found.append(
            {
                "type": dice.choice((FLOAT, HALF, BFLOAT16)),
                "channels_last": dice.choice((0, 1, 1, 1)),
                "dimensions": dimensions,
                "batch": dice.choice((1, 2, 3, 8, 16, 20, 32, 64, 128, 256)),
                "channels": dice.choice(
                    (3, 8, 12, 16, 24, 32, 33, 64, 96, 128, 256, 512, 768, 1000, 1024, 2048)
                ),
                "height": height,
                "width": dice.choice((height, height, height, 1, 10)),
            }
        )
    return found


def compared(cudnn: Cudnn, data: dict[str, Any], every: int = 1) -> list[list[str]]:
    """Return rows of `HEADINGS`: by how much cudnn's answers are more than the GPU's, as a share of
    all of an answer.

    Sizes are in blocks of 512 bytes, as torch's allocator has them; one less is none. Of the
    questions each `every`th is asked.
    """
    found: dict[tuple[str, str], list[tuple[bool, float]]] = {}
    for kind, ask in (("rnn", cudnn.answer), ("batchnorm", cudnn.batchnorm)):
        *asked, _, _, _ = fields = data[kind]["fields"]
        for row in data[kind]["rows"][::every]:
            question, answer = dict(zip(asked, row)), row[-3:]  # noqa: B905 - since Python 3.10
            if min(answer) < 0:
                continue
            of = (
                ALGORITHMS[question["algorithm"]]
                if kind == "rnn"
                else f"channels_last {question['channels_last']}"
            )
            whole = max(BLOCK, sum(answer))
            for size, said, true in zip(fields[-3:], ask(question), answer):  # noqa: B905 - as above
                more = (-(-said // BLOCK) - -(-true // BLOCK)) * BLOCK
                found.setdefault((f"{kind}, {of}", size), []).append((more < -BLOCK, more / whole))
    return [
        [
            *key, str(len(each)), str(sum(less for less, _ in each)), str(sum(more <= 0.01 for _,
            more in each)),
            f"{100 * sorted(more for _, more in each)[len(each) * 95 // 100]:.1f} %",
            f"{100 * max(more for _, more in each):.1f} %",
        ]
        for key, each in sorted(found.items())
    ]  # fmt: skip


def ask_stand_ins(folder: Path) -> None:
    """Print how the answers of the stand-in libraries of a folder compare with a GPU's."""
    from benchmarks.text_table import text_table  # noqa: PLC0415 - not needed on a GPU

    for library in sorted(folder.glob("libcudart.so.*")):  # the others refer to it
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    (cudnn,) = folder.glob("libcudnn.so.*")
    data = json.loads(gzip.decompress(OUT.read_bytes()))
    print("\n".join(text_table(HEADINGS, compared(Cudnn(str(cudnn), lambda _: 0), data))))


def ask_gpu(count: int, out: Path) -> None:
    """Write what the GPU answers."""
    import torch  # noqa: PLC0415 - it takes seconds, and stand-ins need none

    version = torch.backends.cudnn.version()  # loads the library
    torch.zeros(1, device="cuda")
    kept = []

    def room(size: int) -> int:
        kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        return int(kept[-1].data_ptr())

    cudnn = Cudnn("libcudnn.so.9", room)
    networks, inputs = [*variations(), *questions(count)], batchnorm_questions()
    rows = [[*question.values(), *cudnn.answer(question)] for question in networks]
    others = [[*question.values(), *cudnn.batchnorm(question)] for question in inputs]
    found = {
        "gpu": torch.cuda.get_device_name(),
        "cudnn": version,
        "rnn": {"fields": RNN_FIELDS, "rows": rows},
        "batchnorm": {"fields": BATCHNORM_FIELDS, "rows": others},
    }
    with gzip.open(out, "wt", encoding="utf-8") as file:
        json.dump(found, file, separators=(",", ":"))
    for each in (rows, others):
        print(f"{len(each)} questions, {sum(row[-1] >= 0 for row in each)} answered")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Ask cuDNN for the scratch of recurrent networks and of batch norm"
    )
    parser.add_argument("--questions", type=int, default=9000)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument(
        "--stand-ins", type=Path, help="a folder of them, to ask in the GPU's place"
    )
    arguments = parser.parse_args()
    if arguments.stand_ins is not None:
        ask_stand_ins(arguments.stand_ins)
    else:
        ask_gpu(arguments.questions, arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
