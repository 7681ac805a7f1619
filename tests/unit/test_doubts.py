"""Every doubt that a stand-in can report is known to the estimate, or is known to say nothing about sizes."""

import re

from xmem_slurm.device.generate import SOURCES, outputs
from xmem_slurm.sizing.estimate import MARGINS

WITHOUT_MARGIN = {
    "value-read": "values are zeros; by itself that changes no size",
    "default": "trace mode only",
}


def test_every_code_of_the_stand_ins_has_a_margin_or_a_reason_for_none() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.[ch]"))
    codes = set(re.findall(r'doubt\(\s*"([a-z-]+)"', sources))
    codes |= {output.code for output in outputs().values() if output.code}
    assert len(codes) > 5
    assert codes - set(WITHOUT_MARGIN) <= set(MARGINS)
