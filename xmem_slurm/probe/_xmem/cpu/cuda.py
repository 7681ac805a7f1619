"""Lets torch.cuda describe the GPU that the site would give, on a machine that has none; part of `cpu/redirect`.

Where a script would talk to the GPU, nothing happens, and it is done at once.
"""

import collections
import types


class _Idle:
    """A stream, an event or a context of the GPU: accepts everything, does nothing, is always done."""

    device_index = 0
    cuda_stream = 0

    def __init__(self, *_args, **_kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        return None

    def query(self):
        return True

    def elapsed_time(self, *_args, **_kwargs):
        return 1.0

    def record(self, *_args, **_kwargs):
        return None

    def record_event(self, *_args, **_kwargs):
        return _Idle()

    def synchronize(self):
        return None

    def is_capturing(self):
        return False

    wait = wait_event = wait_stream = record


def present(torch, environ):
    """Let torch.cuda describe the site's GPU, and do nothing where it would talk to one."""
    name, count = environ["XMEM_DEVICE_NAME"], int(environ.get("XMEM_DEVICE_COUNT", "1"))
    major, _, minor = environ["XMEM_DEVICE_CAPABILITY"].partition(".")
    total = int(environ["XMEM_DEVICE_TOTAL_BYTES"])
    capability = (int(major), int(minor))
    properties = types.SimpleNamespace(
        name=name,
        major=capability[0],
        minor=capability[1],
        total_memory=total,
        multi_processor_count=int(environ["XMEM_DEVICE_MULTIPROCESSORS"]),
        warp_size=32,
        is_integrated=0,
        is_multi_gpu_board=0,
    )

    def always(value):  # a function of its own for each name: torch._dynamo looks them up by identity
        return lambda *_args, **_kwargs: value

    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: count,
        "current_device": always(0),
        "get_device_name": always(name),
        "get_device_capability": always(capability),
        "get_device_properties": always(properties),
        "get_arch_list": lambda: ["sm_%d%d" % capability],
        "mem_get_info": always((total, total)),
        "is_bf16_supported": always(capability >= (8, 0)),
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": always(True),
        "get_rng_state": lambda *_args, **_kwargs: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()] * count,
        "memory_stats": lambda *_args, **_kwargs: collections.defaultdict(int),
        "memory_summary": always(""),
    }
    idle = "current_stream default_stream stream Stream Event device device_of"
    quiet = (
        "init _lazy_init set_device synchronize empty_cache ipc_collect manual_seed manual_seed_all seed seed_all "
        "reset_peak_memory_stats reset_max_memory_allocated set_per_process_memory_fraction set_rng_state "
        "set_rng_state_all set_stream"
    )
    none_used = "memory_allocated max_memory_allocated memory_reserved max_memory_reserved utilization"
    answers.update({each: type(each, (_Idle,), {}) for each in idle.split()})
    answers.update({each: always(None) for each in quiet.split()})
    answers.update({each: always(0) for each in none_used.split()})
    for attribute, answer in answers.items():
        setattr(torch.cuda, attribute, answer)
        if hasattr(torch.cuda.memory, attribute):
            setattr(torch.cuda.memory, attribute, answer)
    if torch.version.cuda is None:
        torch.version.cuda = "12.8"  # scripts and libraries take a None for "no GPU"
    torch.Tensor.pin_memory = lambda self, device=None: self  # a data loader's thread calls it, outside of the mode
    torch.Tensor.is_pinned = lambda self, device=None: False
    if hasattr(torch, "accelerator"):
        torch.accelerator.is_available = lambda: True
        torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda")
        torch.accelerator.device_count = lambda: count
        torch.accelerator.current_device_index = torch.accelerator.current_device_idx = lambda: 0
        torch.accelerator.current_stream = type("current_stream", (_Idle,), {})
        torch.accelerator.set_device_index = torch.accelerator.set_device_idx = always(None)
        torch.accelerator.synchronize = always(None)
