"""One side of `benchmarks.step_cost`: so many steps of training, whose CPU time a line on stdout
has.

    skipped_step.py plain | gpt2 | trainer | lightning STEPS LAST

The line has the median CPU milliseconds of the LAST steps. They are those of the process, as a
backward pass has a thread of its own. Data cost next to nothing: one sample, given again. Where
STAND_INS names a folder, those are steps without the probe (`without_probe`), which are made.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import without_probe  # noqa: F401 - it is imported for what it maps

# isort: split

import lightning
import torch
import transformers

TOKENS = 64


class Laps:
    """When each step ended, in CPU seconds of the process."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def end(self) -> None:
        """A step has ended."""
        self.ends.append(time.process_time())

    def median(self, last: int) -> float:
        """Return the median milliseconds of the last steps."""
        pairs = zip(self.ends[-last - 1 :], self.ends[-last:], strict=False)
        return 1000 * statistics.median(after - before for before, after in pairs)


def plain(steps: int, laps: Laps) -> None:
    """Train a perceptron of two layers in a loop of its own."""
    linear = torch.nn.Linear
    layers = linear(2048, 8192), torch.nn.Tanh(), linear(8192, 2048)
    model = torch.nn.Sequential(*layers).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        rows = torch.randn(512, 2048, device="cuda")
        torch.nn.functional.mse_loss(model(rows), rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        laps.end()


def gpt2_model() -> torch.nn.Module:
    """Return GPT-2 small, with weights as they are first drawn."""
    return transformers.GPT2LMHeadModel(transformers.GPT2Config())


def gpt2(steps: int, laps: Laps) -> None:
    """Train GPT-2 small in a loop of its own."""
    model = gpt2_model().to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.zeros(1, TOKENS, dtype=torch.long, device="cuda")
    for _ in range(steps):
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        laps.end()


class OneSample(torch.utils.data.Dataset[Any]):
    """The same tokens, as often as is asked for."""

    def __init__(self, steps: int) -> None:
        tokens = torch.zeros(TOKENS, dtype=torch.long)
        self._steps, self._sample = steps, {"input_ids": tokens, "labels": tokens}

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, _index: int) -> dict[str, torch.Tensor]:
        return self._sample


def by_trainer(steps: int, laps: Laps) -> None:
    """Train it by transformers' Trainer."""

    class Lap(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            laps.end()

    with tempfile.TemporaryDirectory() as folder:
        how = {"max_steps": steps, "per_device_train_batch_size": 1, "report_to": []}
        quiet = {"save_strategy": "no", "disable_tqdm": True, "logging_steps": steps}
        args = transformers.TrainingArguments(folder, **how, **quiet)
        trains = transformers.Trainer(gpt2_model(), args, train_dataset=OneSample(steps))
        trains.add_callback(Lap())
        trains.train()


def by_lightning(steps: int, laps: Laps) -> None:
    """Train it by Lightning's Trainer."""

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = gpt2_model()

        def training_step(self, batch: dict[str, torch.Tensor], _index: int) -> Any:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    class Lap(lightning.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, *_args: Any, **_kwargs: Any) -> None:
            laps.end()

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trains = lightning.Trainer(max_steps=steps, callbacks=[Lap()], **quiet)
    trains.fit(Model(), torch.utils.data.DataLoader(OneSample(steps), batch_size=1))


JOBS: dict[str, Callable[[int, Laps], None]] = {
    "plain": plain,
    "gpt2": gpt2,
    "trainer": by_trainer,
    "lightning": by_lightning,
}


def main() -> None:
    """Train, and print the time of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("steps", type=int)
    parser.add_argument("last", type=int)
    given, laps = parser.parse_args(), Laps()
    JOBS[given.job](given.steps, laps)
    print(f"xmem-step {laps.median(given.last)}", flush=True)


if __name__ == "__main__":
    main()
