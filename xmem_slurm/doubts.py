"""What can a dry run not see, what does that cost, and in which words is it reported? The one
register of doubts.

A doubt's code is what stands in a trace file, and in `site-config/margins.toml`; the stand-in
libraries and the probe write it, and so do the engines and the sizing above them. A test holds all
that can be written equal to this list.

The price is the prior of the margin, as a share of the peak. It holds for runs that are not like
those measured (`margins`). 0.20 covers what cuDNN 9.19's plans add to 36 of 39 networks with
contiguous images on an H200 and an A100 (benchmarks/data/cudnn_plans.jsonl). 0.10 is a round
figure, twice the 0.054 that covers 90 of 100 runs with unknown cuDNN plans on smaller GPUs, the one
doubt of this kind that was measured. A doubt without a price changes no size, or leaves no estimate
(`NO_ESTIMATE`).
"""

from enum import Enum

LEAST = 0.02
"""The least prior, for doubts that by themselves change no size."""

_ON_GPU = "only a GPU shows that, and the margin is wider for it"


class Doubt(Enum):
    """Something that a dry run could not see: its code, its price, and its sentence, with a place
    for the detail.
    """

    CUDNN_PLAN = (
        "cudnn-plan",
        0.20,
        "the workspace of cuDNN's plans was not seen ({detail}), and the margin is wider for it",
    )
    CUDNN_TIME = (
        "cudnn-time",
        0.20,
        (
            "asking the job's own cuDNN for its plans took all the time allowed for it "
            "(a larger --xmem-budget allows more)"
        ),
    )
    CUDNN_BATCHNORM = (
        "cudnn-batchnorm",
        0.10,
        f"the memory that cuDNN's batch norm keeps was not seen: {_ON_GPU}",
    )
    CUDNN_RNN = "cudnn-rnn", 0.10, f"cuDNN's RNN workspace was not seen: {_ON_GPU}"
    CUDNN_CTC = "cudnn-ctc", 0.10, f"cuDNN's CTC workspace was not seen: {_ON_GPU}"
    CUSOLVER = "cusolver", 0.10, f"cuSOLVER's workspace was not seen: {_ON_GPU}"
    CUSPARSE = "cusparse", 0.10, f"cuSPARSE's workspace was not seen: {_ON_GPU}"
    CUSPARSELT = "cusparselt", 0.10, f"cuSPARSELt's workspace was not seen: {_ON_GPU}"
    MANAGED = (
        "managed",
        0.10,
        "managed memory may lie on the GPU or on the host: what moves to the GPU was not seen",
    )
    CUFFT = "cufft", 0.10, f"cuFFT's workspace was not seen: {_ON_GPU}"
    NCCL = "nccl", 0.10, f"NCCL's buffers were not seen: {_ON_GPU}"
    PROFILE_ENGINE = (
        "profile-engine",
        0.05,
        (
            "the job's first steps, real ones on this machine's CPU, stand for the GPU's: later "
            "ones were not computed"
        ),
    )
    LATER = (
        "later",
        0.10,
        (
            "later steps, or what follows, need up to {detail} more, with everything selected that "
            "follows from values"
        ),
    )
    FORWARD_READ = (
        "forward-read",
        0.10,
        (
            "the model reads values in its forward pass ({detail}), zeros here: on the GPU it may "
            "need more"
        ),
    )
    NEVER_STEPPED = (
        "never-stepped",
        0.10,
        (
            "{detail}: the script is taken for one that makes none; if it makes one later, it "
            "needs more"
        ),
    )
    OPTIMIZER_READ = (
        "optimizer-read",
        0.10,
        (
            "{detail} decides by values, zeros here, how far it goes: on the GPU it may go "
            "further, and need more"
        ),
    )
    ENGINE = "engine", LEAST, "{detail}"
    VALUE_SHAPE = (
        "value-shape",
        LEAST,
        "{detail}: where they are not known, everything counts as selected",
    )
    VALUE_SHAPE_LEAST = (
        "value-shape-least",
        LEAST,
        "with nothing selected the peak would be {detail}",
    )
    STAND_IN_WEIGHTS = (
        "stand-in-weights",
        LEAST,
        "the weights of {detail} are not on this machine: others took their place",
    )
    NOT_REACHED = (
        "not-reached",
        0.10,
        (
            "{detail} was not reached: what comes there may need more (a larger "
            "--xmem-budget lets the dry run go further)"
        ),
    )
    LARGEST_DRAWN = (
        "largest-drawn",
        LEAST,
        "batches may differ in size, and the largest of {detail} was trained on",
    )
    VARYING = "varying", LEAST, "{detail}"
    OTHER_BATCHES = (
        "other-batches",
        LEAST,
        (
            "batches differ in size, and another rank's may be larger than {detail} "
            "(--xmem-ranks=all runs all)"
        ),
    )
    EXTRAPOLATED = "extrapolated", LEAST, "{detail}"
    RANKS = (
        "ranks",
        0.10,
        "{detail} may need more than those that were run (--xmem-ranks names those to run)",
    )
    ARRAY = "array", 0.10, "{detail}"
    NO_TRITON = (
        "no-triton",
        0.10,
        (
            "torch.compile did not compile: the job's Python has no Triton here, and without it on "
            "the GPU's node the"
            " job fails"
        ),
    )
    AUTOTUNED = (
        "autotuned",
        0.10,
        f"the memory of the kernels that max-autotune chooses was not seen: {_ON_GPU}",
    )
    RECORD_STREAM = (
        "record-stream",
        LEAST,
        (
            "memory used on other streams is assumed to be free when the GPU is as far behind as "
            "it can be, {detail}"
        ),
    )
    PRIVATE_POOL = (
        "private-pool",
        LEAST,
        "CUDA graphs keep pools of their own, which are not released where memory is short",
    )
    GARBAGE = (
        "garbage",
        0.10,
        (
            "Python's garbage collector freed {detail}; on the GPU it may run later, and the job "
            "may need more until then"
        ),
    )
    ASSUMED_VALUES = (
        "assumed-values",
        0.10,
        (
            "{detail}: where the script decides by it, the job may do something else on the GPU, "
            "and need more"
        ),
    )
    VALUES_UNKNOWN = (
        "values-unknown",
        0.10,
        (
            "{detail}: where the script decides by values, the job may do something else on the "
            "GPU, and need more"
        ),
    )
    CLOCK = (
        "clock",
        0.10,
        (
            "the script waits for a time that a dry run does not reach ({detail}): what it does "
            "then may need more"
        ),
    )
    HOOK_MISSING = (
        "hook-missing",
        0.10,
        "{detail}: what is watched there was not seen, and the job may need more",
    )
    SITES_UNKNOWN = (
        "sites-unknown",
        LEAST,
        "{detail}: reports cannot say which line asked for memory",
    )
    SET_UP = "set-up", LEAST, "part of the script failed in the dry run: {detail}"
    RAN_OUT = "ran-out", LEAST, "{detail}"
    THREADS = "threads", 0.10, "{detail}: on a GPU they may be further ahead, and need more"
    SKIPPED = (
        "skipped",
        0.10,
        "{detail}: calls that looked like earlier ones were not run, and may need more than those",
    )
    STOPPED = (
        "stopped",
        0.10,
        "the script stopped with {detail}; what would follow was not seen, and may need more",
    )
    KILLED = (
        "killed",
        0.10,
        (
            "a process was killed, or crashed, while the script went on to its end: what it used "
            "in its last seconds may not have been seen"
        ),
    )
    GROWING = (
        "growing",
        0.10,
        (
            "the run ended before the peak was seen to repeat: it may grow further "
            "(a larger --xmem-budget lets it go on)"
        ),
    )

    TASKS = "tasks", None, "{detail}"
    RANK_ALONE = "rank-alone", None, "{detail}"
    TAKES_ALL = (
        "takes-all",
        None,
        (
            "the script asked for more memory than any GPU has, and went on without it: it takes "
            "as much as it gets"
        ),
    )
    STILL_GROWING = (
        "still-growing",
        None,
        (
            "memory was still growing when the dry run ended: {detail}, and how many follow is not "
            "known"
        ),
    )

    VALUE_READ = "value-read", None, "the script read values of the GPU, zeros here ({detail})"
    METRICS_READ = "metrics-read", None, "{detail}"
    BOTH_WAYS = "both-ways", None, "{detail}"
    STAND_IN_DATA = (
        "stand-in-data",
        None,
        "{detail} is not on this machine: stand-in data of its shape took its place",
    )
    DATA_REPEATED = "data-repeated", None, "{detail}"
    EPOCHS_ALIKE = "epochs-alike", None, "{detail}"
    RANKS_ALIKE = "ranks-alike", None, "{detail}"
    DDP_BUCKETS = (
        "ddp-buckets",
        None,
        "{detail} may still be there while the next are made: the need has room for both",
    )
    CUDNN_TRIALS = (
        "cudnn-trials",
        None,
        "{detail} tries plans that only a GPU shows, in whatever memory is free",
    )
    NO_OPTIMIZER = "no-optimizer", None, "the script trains without an optimizer"
    NO_LAUNCHER = "no-launcher", None, "{detail} is not on PATH here: the dry run did without it"
    OWN_SCRIPT = "own-script", None, "the job asks Slurm for its own script"
    OWN_ENVIRONMENT = "own-environment", None, "{detail}"
    OWN_ALLOCATOR = "own-allocator", None, "{detail}"
    DEFAULT = "default", None, "{detail} answered 0 (told in the stand-ins' trace mode only)"

    def __new__(cls, code: str, price: float | None, sentence: str) -> "Doubt":
        """Make the code the value, as which it goes into files."""
        doubt = object.__new__(cls)
        doubt._value_ = code
        doubt.price, doubt.sentence = price, sentence
        return doubt

    price: float | None
    sentence: str

    @classmethod
    def of(cls, code: object) -> "Doubt":
        """Return the doubt of this code.

        Raises:
            ValueError: there is none.
        """
        matching = next((doubt for doubt in cls if doubt.value == code), None)
        if matching is None:
            raise ValueError("no doubt that there is")
        return matching

    @property
    def code(self) -> str:
        """The word that stands for it in files."""
        return str(self.value)


NO_ESTIMATE = frozenset({Doubt.TASKS, Doubt.RANK_ALONE, Doubt.TAKES_ALL, Doubt.STILL_GROWING})
"""With one of these, what was seen is no estimate."""

NOT_SEEN = (
    Doubt.STOPPED,
    Doubt.KILLED,
    Doubt.NOT_REACHED,
    Doubt.GROWING,
    Doubt.ASSUMED_VALUES,
    Doubt.VALUES_UNKNOWN,
    Doubt.FORWARD_READ,
    Doubt.CLOCK,
    Doubt.ARRAY,
    Doubt.RANKS,
    Doubt.PROFILE_ENGINE,
)
"""Something that the job does was not seen, which may cost it any amount: what is told first, in
this order."""

OF_VALUES = frozenset(
    {
        Doubt.VALUE_READ,
        Doubt.VALUE_SHAPE,
        Doubt.VALUE_SHAPE_LEAST,
        Doubt.VALUES_UNKNOWN,
        Doubt.FORWARD_READ,
        Doubt.ASSUMED_VALUES,
        Doubt.OPTIMIZER_READ,
    }
)
"""A script with one of these had values of the GPU, or shapes that follow from them."""
