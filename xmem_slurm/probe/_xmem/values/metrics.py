"""The losses and scores of a script, which no kernel computes: by turns they are better and worse than ever before.

Note [Metrics]: most of what a script reads of floating point is a loss or a score, and what it decides
by one is whether it is better than the best so far: it keeps the best model, lowers the learning rate,
or ends training early. Were they all alike, nothing would ever be better, and a script that waits for
that would end long before it does on a GPU. Nobody knows here which of them is better when it is lower.
So with each new turn they are lower than ever before, or higher: both ways are gone, and whoever waits
for more than one turn waits in vain. A turn begins with the first evaluation, or with the first loop
over data, after a step of an optimizer: all that is read in one turn is alike, and so is its mean. A
script that shows neither (`model.eval()`, a data loader) evaluates where it calls a model without
gradients.

They stay within a half and one, so that they can be a share, have a logarithm, and divide. Each is
`MIDDLE` and so much more or less; that grows by the logarithm of the turns, as by less and less a record
is broken in any training.
"""

import math

MIDDLE, GROWTH, MOST = 0.75, 0.03, 0.24
"""What they are before training, what the first record differs from that, and the most that any does."""

MOST_METRICS = 1 << 20
"""Elements of a tensor that is copied to the host: of larger ones, weights as a rule, it would take time."""


class Metrics:
    """The turns of one process."""

    def __init__(self):
        self._turn = self._steps = 0
        self._rest = 0.0  # of what was counted: what no whole number had room for
        self._shown = False

    def measured(self, steps, *, shown=True):
        """The script begins to evaluate, or another loop over data, after so many optimizer steps.

        Unless that is `shown`, it does so where no script has shown it.
        """
        self._shown = self._shown or shown
        if steps != self._steps and shown == self._shown:
            self._steps, self._turn, self._rest = steps, self._turn + 1, 0.0

    @property
    def number(self):
        """What a loss or a score is in this turn."""
        records = (self._turn + 1) // 2
        differs = min(MOST, GROWTH * (1 + math.log(records))) if records else 0.0
        return MIDDLE - differs if self.truth else MIDDLE + differs

    @property
    def truth(self):
        """Whether one that is better when it is lower is better than ever before."""
        return self._turn % 2 == 1

    def count(self, most):
        """Return how many of so many are right; over all that is counted in a turn that is the share `number`."""
        exact = self.number * most + self._rest
        self._rest = exact - int(exact)
        return int(exact)
