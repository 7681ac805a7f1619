"""Whether the epochs that were seen stand for those to come.

Note [Epochs alike]: real trainings are longer than any dry run. What the rest of one is taken to be
like, is what was seen of it whole: epochs to their end, with every batch, and with the evaluation,
the checkpoint and whatever else follows them. Where nothing in them was new for so many epochs
(`EPOCHS`) and steps (`STEPS`), the others are taken for the same. New is a step of a kind that was
not met before, and a peak that has risen.

That says nothing of what hangs on the number of an epoch: a last test, layers that are thawed in
the tenth, pictures that grow. So the rest is run, too, with its loops over data cut short, to the
script's own end. It earns no trust of its own, but anything new in it takes away that of the whole
epochs, and so does a loop that is cut short where none of its kind was seen whole. What is left out
of sight is what hangs on a number of steps that neither of them came to.

Where another run of the job has made every step, to the script's end, but with losses and scores
that were taken for the same all the time (`dryrun/engines`), that is seen. What is in question then
is only what the script does by better ones after an epoch: one whole epoch without anything new is
enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _xmem.annotations import LoopKind

EPOCHS = 2
"""So many whole epochs without anything new, after the one in which there was something..."""
STEPS = 1_000
"""...and so many steps: twice what trainers have between two evaluations or checkpoints unless they
are told (500 in transformers' TrainingArguments, `eval_steps` and `save_steps`)."""
SLIGHT = 1e-4
"""A peak that has risen by no more than this share of itself is no news: a loss that is kept, once
an epoch."""


class Epochs:
    """The epochs of one process: `whole` ones, then those that were `cut` short."""

    def __init__(self, *, end_seen: bool = False) -> None:
        """`end_seen`: another run of the job has come to the script's end (Note [Epochs alike])."""
        self._least_epochs, self._least_steps = (1, 0) if end_seen else (EPOCHS, STEPS)
        self.whole = self.cut = 0
        self.trusted = False
        """Whether the whole ones stand for those to come: once loops are cut short, and until
        something is new."""
        # whole epochs, and steps, since anything was new; below 0: in this epoch
        self._alike = self._steps = 0
        self._between = False  # an epoch has ended, and the first step of the next is not done
        self._peak = 0
        # kinds of loops over data that were seen whole, and whether steps were made in them
        self._loops: dict[LoopKind, bool] = {}

    def stepped(self, met: bool, peak: int) -> None:
        """Count a step; `met`: it was like an earlier one, and so many bytes were allocated at the
        most so far.
        """
        self._steps += 1
        self.reached(peak)
        if not met:
            self._renew()
        self._between = False

    def reached(self, peak: int) -> None:
        """So many bytes were allocated at the most so far."""
        if self._is_news(peak):
            self._peak = peak
            self._renew()

    def _is_news(self, peak: int) -> bool:
        return peak > self._peak * (1 + SLIGHT)

    def _renew(self) -> None:
        self._alike, self._steps, self.trusted = 0 if self._between else -1, 0, False

    def ended(self, kind: LoopKind, trains: bool, cut: bool) -> None:
        """A loop of this kind has ended, or was `cut` short; `trains`: steps were made in it, so it
        is an epoch.
        """
        if not cut:
            self._loops[kind] = trains or self._loops.get(kind, False)
        elif kind not in self._loops:
            self._renew()
        if trains:
            self._between = True
            self.cut += cut
            self.whole += not cut
            self._alike += not cut

    def stop(self) -> None:
        """From here on loops are cut short: what was seen stands for the rest, or it does not."""
        self.trusted = self.are_alike()

    def are_alike(self) -> bool:
        """Whether so much was seen without anything new that the rest can be taken for the same."""
        return self._alike >= self._least_epochs and self._steps >= self._least_steps

    def known_loops(self) -> dict[LoopKind, bool]:
        """Return the kinds of loops that were seen whole, in epochs that stand for the rest, and
        whether they train.
        """
        return self._loops if self.trusted else {}

    def stand_to_the_end(self, peak: int) -> bool:
        """Whether they stand for the rest of a script that has ended, with so many bytes allocated
        at the most.
        """
        return self.trusted and not self._is_news(peak)

    def counts(self) -> tuple[int, int] | None:
        """Return how many were whole, of how many; None where there was none."""
        return (self.whole, self.whole + self.cut) if self.whole + self.cut else None

    def words(self) -> str:
        """Say what stands for what."""
        text = (
            "{:,} whole epochs, nothing new in the last {:,} of them nor in the {:,} that were "
            "cut short"
        )
        return text.format(self.whole, self._alike, self.cut)
