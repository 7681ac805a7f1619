"""`python -m tests.integration.later_peaks`: what command.py says."""

from tests.integration.later_peaks.cases import LATER_PEAKS
from tests.integration.later_peaks.command import main

if __name__ == "__main__":
    main(LATER_PEAKS)
