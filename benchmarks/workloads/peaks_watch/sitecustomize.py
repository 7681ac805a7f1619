"""Write down what torch's allocator holds at most in this process: with this folder on PYTHONPATH,
any Python does it.

PEAKS_FOLDER gets PID.json, {torch, gpu, allocated, reserved}, bytes of the first GPU, from the
first allocation on and once a second: however a script ends, or is ended, little is missed.
"""

import atexit
import json
import os
import sys
import threading
import time
from pathlib import Path

EVERY_SECONDS = 1
FILE = Path(os.environ["PEAKS_FOLDER"], f"{os.getpid()}.json")
MOST = {"allocated": 0, "reserved": 0}


def note(torch):
    """Keep the larger of what was seen before and what torch says now."""
    stats = torch.cuda.memory_stats(0)
    MOST.update(
        {name: max(most, stats.get(f"{name}_bytes.all.peak", 0)) for name, most in MOST.items()}
    )
    whole = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0), **MOST}
    part = FILE.with_suffix(".part")
    part.write_text(json.dumps(whole))
    part.replace(FILE)


def in_use():
    """Return torch where this process has begun to use a GPU."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return torch if hasattr(cuda, "is_initialized") and cuda.is_initialized() else None


def watch():
    """Note it for as long as the process lives, also before a script begins to count anew."""
    while not in_use():
        time.sleep(EVERY_SECONDS / 10)
    torch = in_use()
    begin_anew = torch.cuda.reset_peak_memory_stats

    def note_and_begin_anew(*device):
        note(torch)
        begin_anew(*device)

    torch.cuda.reset_peak_memory_stats = torch.cuda.memory.reset_peak_memory_stats = (
        note_and_begin_anew
    )
    while True:
        note(torch)
        time.sleep(EVERY_SECONDS)


@atexit.register
def at_the_end():
    """Note it a last time."""
    if in_use():
        note(in_use())


threading.Thread(target=watch, daemon=True).start()
