"""`python -m tests.integration.unseen_peaks`: what later_peaks/command.py says."""

from tests.integration.later_peaks.command import main
from tests.integration.unseen_peaks.cases import UNSEEN_PEAKS

if __name__ == "__main__":
    main(UNSEEN_PEAKS)
