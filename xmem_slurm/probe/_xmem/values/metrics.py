"""The losses and scores of a script, which no kernel computes: all alike, or by turns better and
worse than before.

Note [Metrics]: most of what a script reads of floating point is a loss or a score, and what it
decides by one is whether that is low or high enough, or better than the best so far. So there are
two courses. With zeros all thresholds are crossed and nothing is ever better: a script that waits
for that ends its training early, or goes on to its next stage. (Where computing with a zero would
stop it, all are another number, still the same.) In the other course they are by turns lower than
ever before and higher, as nobody knows here which of them is better when it is lower: whoever waits
for more than one turn waits in vain. A job is run by both where it reads some again and again
(`dryrun/engines`, XMEM_NUMBERS), and has the memory for the larger.

A turn begins with the first evaluation, or with the first loop over data, after a step of an
optimizer. A script that shows neither (`model.eval()`, a data loader) evaluates where it calls a
model without gradients. Each line of a script that reads has its own turns: those in which it does.
So all that it reads in one is alike, as is its mean, and one that reads every other time does not
miss the lower ones. Every other line begins with a higher one, so that a loss is lower while a
score is higher.

They stay between 0 and 1, so that they can be a share, have a logarithm, and divide.

Note [Tried numbers]: a loop of the script's may end by such a number (Sinkhorn's, a fixed point's:
`if error < 1e-3: break`), with zeros at once, on a GPU after a hundred turns whose graph is kept.
So in the steps `TRIED` a line reads another number where gradients are on, so many times at most.
What that needs is in the trace then; and a line that reads more often by it is as if a model's
forward pass had read.
"""

from __future__ import annotations

MIDDLE, PACE = 0.75, 4
"""What they are at first; and how many records it takes to halve the way to 0, or to 1."""
TRIED, MOST_TRIED = (4, 5), 128
"""After so many steps of optimizers a line reads another number than zero, and so many times."""
MORE = 2
"""So many times as often as in any other step a line reads in one of these whose loop hangs on what
it reads."""
MOST_METRICS = 1 << 20
"""Elements of a tensor that is copied to the host: of larger ones, weights as a rule, it would take
time."""


class _ReadingLine:
    """A line of a script that reads them: the process's turn when it last did, and how many of its
    own it had.
    """

    def __init__(self, begins_higher: bool) -> None:
        self.last, self.turns = -1, 0
        self._begins_higher = begins_higher
        self.fraction = 0.0  # of what was counted in this turn: what no whole number had room for
        self._step = self._in_step = self.most_untried = self.most_tried = 0

    def reads(self, turn: int) -> None:
        """It reads in this turn of the process."""
        if turn != self.last:
            self.last, self.turns, self.fraction = turn, self.turns + 1, 0.0

    def reads_in(self, step: int) -> int:
        """It reads after so many steps; return how often it has since the last one."""
        self._in_step = self._in_step + 1 if step == self._step else 1
        self._step = step
        if step in TRIED:
            self.most_tried = max(self.most_tried, self._in_step)
        else:
            self.most_untried = max(self.most_untried, self._in_step)
        return self._in_step

    @property
    def is_lower(self) -> bool:
        """Whether what it reads in this turn is lower than ever before."""
        return (self.turns - 1 + self._begins_higher) % 2 == 1

    @property
    def number(self) -> float:
        """What it reads in this turn."""
        remaining = 1 / (1 + self.turns // 2 / PACE)
        return MIDDLE * remaining if self.is_lower else 1 - (1 - MIDDLE) * remaining


class Metrics:
    """The turns of one process; its `course` is one of "zeros", "still" and "turns"."""

    def __init__(self, course: str) -> None:
        self._course = course
        self.steps_made = 0
        """How many steps optimizers have made."""
        self._turn = self._steps = 0
        self._shown = False
        self._lines: dict[str, _ReadingLine] = {}
        self._answers: dict[str, set[bool]] = {}  # by what was asked

    def measured(self, steps: int, *, shown: bool = True) -> None:
        """The script begins to evaluate, or another loop over data, after so many optimizer steps.

        Unless that is `shown`, it does so where no script has shown it.
        """
        self._shown = self._shown or (shown and steps > 0)
        if steps != self._steps and shown == self._shown:
            self._steps, self._turn = steps, self._turn + 1

    @property
    def most_turns(self) -> int:
        """In how many turns a line has read them, of the one that did in the most."""
        return max((line.turns for line in list(self._lines.values())), default=0)

    def number(self, place: str) -> float:
        """Return what a loss or a score is that is read at this place of a script."""
        return self._number(self._line(place))

    def number_in_training(self, place: str) -> float:
        """Return what one is that the script itself reads where gradients are on (Note [Tried
        numbers]).
        """
        line = self._line(place)
        often = line.reads_in(self.steps_made)
        tries = self._course == "zeros" and self.steps_made in TRIED and often <= MOST_TRIED
        return MIDDLE if tries else self._number(line)

    def loops(self) -> list[str]:
        """Return the places that read more often where they were given another number."""
        return [
            place
            for place, line in list(self._lines.items())
            if line.most_tried > MORE * max(line.most_untried, 1)
        ]

    def _number(self, line: _ReadingLine) -> float:
        if self._course == "turns":
            return line.number
        return MIDDLE if self._course == "still" else 0.0

    def truth(self, place: str, question: str) -> bool:
        """Return the answer to what is asked, such as whether one is better than the best so
        far.
        """
        line = self._line(place)
        truth = self._course == "turns" and line.is_lower
        self._answers.setdefault(question, set()).add(truth)
        return truth

    def both_ways(self) -> list[str]:
        """Return what was asked and was true at one time, and false at another."""
        return [question for question, answers in list(self._answers.items()) if len(answers) == 2]

    def count(self, total: int, place: str) -> int:
        """Return how many of so many are right; over all that is counted in a turn that is the
        share `number`.
        """
        line = self._line(place)
        if self._course == "zeros":
            return total
        exact = self._number(line) * total + line.fraction
        line.fraction = exact - int(exact)
        return int(exact)

    def _line(self, place: str) -> _ReadingLine:
        line = self._lines.get(place)
        if line is None:
            line = self._lines[place] = _ReadingLine(begins_higher=len(self._lines) % 2 == 1)
        line.reads(self._turn)
        return line
