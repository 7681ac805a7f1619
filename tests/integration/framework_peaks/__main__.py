"""`python -m tests.integration.framework_peaks`: what later_peaks/command.py says."""

from tests.integration.framework_peaks.cases import FRAMEWORK_PEAKS
from tests.integration.later_peaks.command import main

if __name__ == "__main__":
    main(FRAMEWORK_PEAKS)
