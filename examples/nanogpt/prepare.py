"""Write a small stand-in for a tokenised corpus: train.bin and val.bin, uint16."""

import sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
for part, tokens in (("train", 1 << 20), ("val", 1 << 16)):
    np.random.default_rng(0).integers(0, 50257, tokens, dtype=np.uint16).tofile(
        folder / f"{part}.bin"
    )
