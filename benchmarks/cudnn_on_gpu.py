"""What does cuDNN answer on a GPU, where it has a handle, and what without one, for a GPU that is
only described to it?

    python -m benchmarks.cudnn_on_gpu                       on a GPU: ask again, in the place of the answers there are
    python -m benchmarks.cudnn_on_gpu --library LIBRARY     anywhere: the real libcudnn_graph.so.9 of a job, and a table

The questions are the convolutions of VGG-16, ResNet-50, MobileNetV2, RegNetX and ConvNeXt in the
campaign's runs, as torch asks them (libraries/cudnn_plans.c has the form). An answer is the
engines' numbers and the workspaces of their plans, bytes, in cuDNN's order.
benchmarks/data/cudnn_on_gpu.json.gz keeps both.
"""

import argparse
import ctypes
import gzip
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.text_table import text_table

DATA = Path(__file__).parent / "data" / "cudnn_on_gpu.json.gz"

HEURISTICS, CONFIGURATION, PLAN, ENGINE, GRAPH, DEVICE = 4, 3, 5, 2, 15, 38
HANDLE_TYPE, INT64, DESCRIPTOR, CHAR = 0, 3, 15, 24
DIRECTIONS = {"10": "forward", "11": "filters", "12": "images"}
"""Numbers of cudnn_graph.h 9.19, in the order of its enumerations."""

Answer = list[list[int]]
"""[engine, bytes of workspace] of each plan."""


class Backend:
    """CuDNN's backend API: with a handle on a GPU, or for a description of one."""

    def __init__(self, library: ctypes.CDLL, description: str | None) -> None:
        self.library, self.handle, self.device = library, ctypes.c_void_p(), None
        if description is None:
            self.check(library.cudnnCreate(ctypes.byref(self.handle)), "cudnnCreate")
        else:
            text = description.encode()
            self.device = self.make(DEVICE)
            self.check(self.set(self.device, 2702, CHAR, len(text), text), "the GPU's description")
            self.check(library.cudnnBackendFinalize(self.device), "the GPU's description")

    def check(self, status: int, what: str) -> None:
        """Raise RuntimeError where a call of cuDNN's failed."""
        if status:
            raise RuntimeError(f"{what}: cuDNN's status {status}")

    def make(self, kind: int) -> ctypes.c_void_p:
        """Return a new descriptor."""
        made = ctypes.c_void_p()
        self.check(
            self.library.cudnnBackendCreateDescriptor(kind, ctypes.byref(made)),
            f"descriptor {kind}",
        )
        return made

    def set(
        self, descriptor: ctypes.c_void_p, name: int, kind: int, count: int, values: Any
    ) -> int:
        """Set an attribute; return the status."""
        return int(
            self.library.cudnnBackendSetAttribute(
                descriptor, name, kind, ctypes.c_int64(count), values
            )
        )

    def get(
        self, descriptor: ctypes.c_void_p, name: int, kind: int, count: int, values: Any
    ) -> int:
        """Read an attribute into `values`; return how many there are."""
        found = ctypes.c_int64()
        self.library.cudnnBackendGetAttribute(
            descriptor, name, kind, ctypes.c_int64(count), ctypes.byref(found), values
        )
        return found.value

    def on_device(
        self, descriptor: ctypes.c_void_p, handle_name: int | None, device_name: int | None
    ) -> None:
        """Say for what GPU a descriptor is, by the attribute of the one kind or of the other, if it
        has that.
        """
        if self.device is None and handle_name is not None:
            self.set(descriptor, handle_name, HANDLE_TYPE, 1, ctypes.byref(self.handle))
        if self.device is not None and device_name is not None:
            self.set(descriptor, device_name, DESCRIPTOR, 1, ctypes.byref(self.device))

    def ask(self, question: Sequence[str]) -> Answer:
        """Return the plans of one question's heuristics."""
        made: list[ctypes.c_void_p] = []
        for line in question:
            kind, *attributes = line.split()[1:]
            made.append(self.make(int(kind)))
            for name, type_, count, values in (each.split(":") for each in attributes):
                numbers = (
                    [made[int(number)].value for number in values.split(",")]
                    if int(type_) == DESCRIPTOR
                    else []
                )
                data = (
                    (ctypes.c_void_p * len(numbers))(*numbers) if numbers else bytes.fromhex(values)
                )
                self.check(self.set(made[-1], int(name), int(type_), int(count), data), line)
            if int(kind) == GRAPH:
                self.on_device(made[-1], 800, None)
            if int(kind) == HEURISTICS:
                self.on_device(made[-1], None, 204)
            self.check(self.library.cudnnBackendFinalize(made[-1]), line)
        plans = self._plans(made[-1], made)
        for each in made:
            self.library.cudnnBackendDestroyDescriptor(each)
        return plans

    def _plans(self, heuristics: ctypes.c_void_p, made: list[ctypes.c_void_p]) -> Answer:
        count = self.get(heuristics, 202, DESCRIPTOR, 0, None)
        configurations = [self.make(CONFIGURATION) for _ in range(count)]
        made += configurations
        places = (ctypes.c_void_p * count)(*(each.value for each in configurations))
        self.get(heuristics, 202, DESCRIPTOR, count, places)
        plans = []
        for configuration in configurations:
            engine, plan = self.make(ENGINE), self.make(PLAN)
            made += [engine, plan]
            number, workspace = ctypes.c_int64(-1), ctypes.c_int64()
            self.get(configuration, 300, DESCRIPTOR, 1, ctypes.byref(ctypes.c_void_p(engine.value)))
            self.get(engine, 1301, INT64, 1, ctypes.byref(number))
            self.set(plan, 401, DESCRIPTOR, 1, ctypes.byref(configuration))
            self.on_device(plan, 400, 407)
            if number.value >= 0 and self.library.cudnnBackendFinalize(plan) == 0:
                self.get(plan, 402, INT64, 1, ctypes.byref(workspace))
                plans.append([number.value, workspace.value])
        return plans


def measure(data: dict[str, Any]) -> None:
    """Put this GPU's answers in the place of those that `data` has."""
    import nvidia.cudnn  # noqa: PLC0415 - on the GPU's machine: beside torch, which maps what cuDNN needs
    import torch  # noqa: PLC0415

    torch.zeros(1, device="cuda")
    backend = Backend(
        ctypes.CDLL(str(Path(nvidia.cudnn.__path__[0], "lib", "libcudnn_graph.so.9"))), None
    )
    device = backend.make(DEVICE)
    backend.set(device, 2701, HANDLE_TYPE, 1, ctypes.byref(backend.handle))
    backend.library.cudnnBackendFinalize(device)
    text = ctypes.create_string_buffer(1 << 14)
    backend.get(device, 2702, CHAR, len(text), text)
    data |= {"gpu": json.loads(text.value), "cudnn": torch.backends.cudnn.version()}
    for each in data["answers"]:
        each["gpu"] = backend.ask(each["question"])


def table(data: dict[str, Any], library: str) -> list[str]:
    """Compare the GPU's answers with those of `library` without one, by direction."""
    from benchmarks.ground_truth_compare import in_blocks  # noqa: PLC0415 - the product is not needed to measure

    backend = Backend(ctypes.CDLL(library), json.dumps(data["gpu"]))
    parts = data["gpu"]["multiProcessorCount"] * 2 * 128 * 128 * 4
    counts: dict[str, Counter[str]] = {}
    for each in data["answers"]:
        gpu, without = each["gpu"], backend.ask(each["question"])
        kind = next(
            DIRECTIONS[words[1]]
            for line in each["question"]
            if (words := line.split())[1] in DIRECTIONS
        )
        first, expected, most = gpu[0][1], without[0][1], max(workspace for _, workspace in without)
        counted = counts.setdefault(kind, Counter())
        counted["all"] += 1
        counted[
            "engine left out"
            if gpu[0][0] not in {engine for engine, _ in without}
            else "engine there"
        ] += 1
        counted[
            "same"
            if in_blocks(first) == in_blocks(expected)
            else "less"
            if first < expected
            else "more"
        ] += 1
        counted["above the largest"] += in_blocks(first) > in_blocks(most)
        counted["above the bound"] += first > most + parts
    columns = (
        "all",
        "engine left out",
        "same",
        "less",
        "more",
        "above the largest",
        "above the bound",
    )
    return text_table(
        ("direction", *columns),
        [[kind, *(str(found[name]) for name in columns)] for kind, found in counts.items()],
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Compare cuDNN's plans with a GPU and without")
    parser.add_argument(
        "--library", help="a libcudnn_graph.so.9 to ask without a GPU; without it, ask on the GPU"
    )
    parser.add_argument("--out", type=Path, default=DATA)
    arguments = parser.parse_args()
    data = json.loads(gzip.decompress(DATA.read_bytes()))
    if arguments.library is not None:
        print("\n".join(table(data, arguments.library)))
        return
    measure(data)
    arguments.out.write_bytes(
        gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0)
    )


if __name__ == "__main__":
    main()
