"""What categories of memory are called where people read them."""

from collections.abc import Mapping

from xmem_slurm.trace import Category

CATEGORY_NAMES: Mapping[Category, str] = {
    Category.PARAM: "parameters",
    Category.BUFFER: "buffers",
    Category.GRAD: "gradients",
    Category.ACT: "activations",
    Category.TEMP: "temporary",
    Category.OPT: "optimizer state",
    Category.OTH: "other",
}
