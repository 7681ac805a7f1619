"""Records what one process asks of torch's caching allocator, and writes it as a trace (form: xmem_slurm/trace.py)."""

import contextlib
import functools
import importlib
import json
import os
import sys
import threading
import time

import _xmem_advice
import _xmem_alive
import _xmem_clock
import _xmem_device
import _xmem_downloads
import _xmem_ends
import _xmem_epochs
import _xmem_known
import _xmem_network
import _xmem_peers
import _xmem_pools
import _xmem_process
import _xmem_ranks
import _xmem_sites
import _xmem_steps
import _xmem_streams
import _xmem_triton
import _xmem_values

SCHEMA_VERSION = 1
TAGGED_STEPS = 32
"""Steps at which the tensors of parameters, gradients and optimizer state are looked up; later, where the peak grew.

A steady run ends before (`_xmem_steps.ENOUGH_STEPS`): in its report gradients are gradients to the end."""
CHECKPOINT_STEPS = (2, 4, 8)
"""Steps after which the trace so far is written, so that a process that is killed early leaves one, too..."""
CHECKPOINT_SECONDS = 5.0
"""...and how often after that, at the least."""
LOOK_SECONDS = 0.25
MOST_ALLOCATIONS = 300_000
"""A longer trace is of no more use, and reading it out takes 1 GB of host memory: the process ends there..."""
MOST_BEFORE_STEPS = 3 * MOST_ALLOCATIONS
"""...unless there is no whole step yet, as where a diffusion model draws samples before it trains."""

_PEAKS = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
_RESETS = (
    "_cuda_resetPeakMemoryStats",
    "_cuda_resetAccumulatedMemoryStats",
    "_accelerator_resetPeakStats",
    "_accelerator_resetAccumulatedStats",
)
"""Functions of torch._C by which a script starts the allocator's statistics anew."""


class Recorder:
    """One for each process that imports torch. A forked child that touches CUDA itself records on its own.

    With XMEM_DEADLINE (a time.monotonic() value) a process ends once it is steady; without, it runs to its end.
    """

    def __init__(self, environ):
        self._environ = environ
        self._deadline = float(environ.get("XMEM_DEADLINE", "inf"))
        self._torch = None
        self._runtime = None
        self._build = ("unknown", None)
        self._settings = {}
        self._epochs = _xmem_epochs.Epochs()
        self._values = _xmem_values.Values()
        self._begin()

    def _begin(self):
        """Start as a process that has seen nothing: at first, and in a forked child."""
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._file = os.path.join(self._environ["XMEM_TRACE_DIR"], "%d-%d" % (self._pid, time.monotonic_ns()))
        self._error = None
        self._exit = None
        self._recording = False
        self._started = time.monotonic()
        self._finished = False
        self._devices = (0,)
        self._peaks = {}
        self._forgotten = {}
        self._marks = []
        self._tags = []
        self._pools = _xmem_pools.Pools()
        self._sites = _xmem_sites.Sites()
        self._steps = _xmem_steps.Steps()

    # -- around `import torch` -----------------------------------------------------------------------------------------

    def knows_torch(self):
        return self._torch is not None

    def before_torch(self, folder):
        """Map the stand-ins, or end this process: without them torch would compute for real on a login node's CPU."""
        try:
            self._build = _xmem_device.torch_build(folder)
            if self._build[1] is None:
                raise RuntimeError("torch %s in %s is not a CUDA build" % (self._build[0], folder))
            self._runtime = _xmem_device.map_stand_ins(folder, json.loads(self._environ["XMEM_DEVICE_BUILD"]))
        except Exception as error:
            self._give_up(str(error))
        self._choose_allocator()
        self.write("importing")

    def _choose_allocator(self):
        """Take torch's own allocator in place of CUDA's, which it cannot record; the trace says what the job chose."""
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            if name in os.environ:
                chosen = os.environ[name]
                os.environ[name] = chosen.replace("cudaMallocAsync", "native")
                self._settings = {os.environ[name]: chosen}

    def torch_failed(self, error):
        """`import torch` raised; the job will say so itself, or try again."""
        self._error = _xmem_ends.one_line(error)
        self.write("failed")
        self._error = None

    def after_torch(self, torch):
        """Hook in: nothing is recorded before CUDA is first used, so that forking stays as safe as it was."""
        self._torch = torch
        torch.cuda._lazy_call(self._start)
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._after_step)
        _xmem_alive.watch(torch.optim.Optimizer)
        torch.autograd.backward = self._around_backward(torch.autograd.backward)
        for name in _RESETS:
            if hasattr(torch._C, name):
                setattr(torch._C, name, self._around_reset(getattr(torch._C, name)))
        if self._deadline != float("inf"):
            self._epochs.install(torch)
        _xmem_ranks.install(torch, functools.partial(self._leave, "steady"))
        _xmem_known.install(torch, self._environ)
        _xmem_triton.install(torch)
        _xmem_streams.install(torch)
        _xmem_advice.install(torch, self._environ.get("XMEM_ADVICE"))
        self._values.watch(torch, self._runtime)
        _xmem_ends.hook(self)
        self.write("running")

    def _start(self):
        memory = self._torch.cuda.memory
        try:
            memory._record_memory_history(max_entries=sys.maxsize, context=None)
        except RuntimeError as error:
            self._give_up("torch cannot record what this allocator does: %s" % _xmem_ends.one_line(error))
        if "XMEM_SITES" in self._environ:
            self._sites.watch(self._torch)
        memory._record_memory_history = lambda *_args, **_kwargs: None  # a script's own call would end our recording
        with self._lock:
            self._devices = range(self._torch.cuda.device_count())
            self._recording = True
            self._started = time.monotonic()
        threading.Thread(target=self._watch, name="xmem", daemon=True).start()

    def _give_up(self, why):
        self._error = why
        self.write("failed")
        self._finished = True
        os._exit(1)

    # -- while the job runs --------------------------------------------------------------------------------------------

    def _around_backward(self, backward):
        @functools.wraps(backward)
        def wrapped(*args, **kwargs):
            self._mark("backward")
            try:
                with self._sites.backward():
                    return backward(*args, **kwargs)
            finally:
                self._mark("backward_end")

        return wrapped

    def _around_reset(self, reset):
        @functools.wraps(reset)
        def wrapped(*args, **kwargs):
            before = self._counts() if self._recording else None
            reset(*args, **kwargs)
            if before is not None:
                after = self._counts()
                for device in self._devices:
                    self._forgotten[device] = self._forgotten.get(device, 0) + before[device] - after[device]

        return wrapped

    def _counts(self):
        """Return how many allocations each device has served, and note its peaks."""
        counts = []
        for device in self._devices:
            stats = self._torch._C._cuda_memoryStats(device)
            known = self._peaks.get(device, {})
            self._peaks[device] = {name: max(stats[name]["all"]["peak"], known.get(name, 0)) for name in _PEAKS}
            counts.append(stats["allocation"]["all"]["allocated"] + self._forgotten.get(device, 0))
        return counts

    def _mark(self, kind):
        if self._recording:
            self._marks.append((kind, self._counts(), time.monotonic()))

    def _after_step(self, optimizer, _args, _kwargs):
        if not self._recording or self._finished:
            return
        self._exit = None  # whoever called sys.exit was not heeded
        before = self._peaks.copy()
        counts, now = self._counts(), _xmem_clock.now()
        first = self._steps.number == 0
        most = self._steps.number
        number = self._steps.stepped(optimizer, self._peaks.copy(), now)
        if number > most:
            self._marks.append(("step", counts, time.monotonic()))
        if number <= TAGGED_STEPS or self._peaks != before:
            self._tag_optimizer(optimizer, self._sites.names() if first else {})
        if first:
            self._tag_modules()
        self._epochs.stepped()
        steady = self._deadline != float("inf") and self._steps.steady(self._torch.optim.Optimizer, now)
        if steady and self._epochs.enough(now) and _xmem_ranks.all_steady(self._torch):
            self._leave("steady")
        if self._too_long(counts):
            self._leave("budget")
        if number > most and number in CHECKPOINT_STEPS:
            self.write("running")

    def _leave(self, state):
        self.finish(state)
        try:
            _xmem_ends.kill_workers()
        finally:
            os._exit(0)

    def _tag(self, category, named):
        """Note that the tensors in `named` [(name or "", whatever holds tensors)] are of this category now."""
        addresses = {}
        for name, value in named:
            for each in _xmem_process.leaves([value]):
                tensor = getattr(each, "_local_tensor", each)  # a DTensor's own part
                if isinstance(tensor, self._torch.Tensor) and tensor.is_cuda:
                    with contextlib.suppress(Exception):  # a tensor without storage of its own, or that forbids it
                        addresses.setdefault(tensor.device.index, {})[tensor.untyped_storage().data_ptr()] = name
        if addresses:
            self._tags.append((category, self._counts(), addresses))

    def _tag_optimizer(self, optimizer, names):
        parameters = [(names.get(id(p), ""), p) for group in optimizer.param_groups for p in group["params"]]
        self._tag("PARAM", parameters)
        self._tag("GRAD", [("", p.grad) for _, p in parameters if p.grad is not None])
        self._tag("OPT", [(names.get(id(p), ""), state) for p, state in optimizer.state.items()])

    def _tag_modules(self):
        """Parameters and buffers of every module alive: those that no optimizer holds are memory too."""
        modules, names = _xmem_alive.instances(self._torch.nn.Module), self._sites.names()
        with contextlib.suppress(Exception):  # a module that is half built
            self._tag("PARAM", [(names.get(id(p), ""), p) for m in modules for p in m._parameters.values()])
            self._tag("BUFFER", [(names.get(id(b), ""), b) for m in modules for b in m._buffers.values()])

    def _watch(self):
        """Write the trace every few seconds, and a last time when the budget is spent."""
        pid, due = os.getpid(), time.monotonic() + CHECKPOINT_SECONDS
        while not self._finished and os.getpid() == pid:
            time.sleep(max(0.0, min(LOOK_SECONDS, self._deadline - time.monotonic())))
            now = time.monotonic()
            if now >= self._deadline:
                self.finish("steady" if self._epochs.repeats() else "budget")
            elif self._too_long(self._counts()):
                self._leave("budget")
            elif self._epochs.overdue(_xmem_clock.now()):
                self._leave("steady")
            elif now >= due:
                self.write("running")
                due = time.monotonic() + max(CHECKPOINT_SECONDS, 20 * (time.monotonic() - now))

    def _too_long(self, counts):
        most = MOST_ALLOCATIONS if self._steps.number >= 2 else MOST_BEFORE_STEPS
        return self._deadline != float("inf") and sum(counts) > most

    # -- the end of a process ------------------------------------------------------------------------------------------

    def in_child(self):
        """Forget the parent's run. CUDA cannot be used again after a fork, so the child of one that has is silent."""
        recorded = self._recording or self._finished
        self._begin()
        self._finished = recorded

    def asked_to_exit(self, error):
        """Note what sys.exit was given: the error of the script, if it does not catch that."""
        self._exit = error

    def finish(self, state, error=None):
        """Write the trace for the last time."""
        with self._lock:
            if self._torch is None or self._finished or self._pid != os.getpid():
                return
            self._error = error or _xmem_ends.uncaught() or self._exit
            never_stepped = state == "exit" and self._recording and self._steps.number == 0
            if never_stepped and self._has_optimizer() and self._epochs.meant_to_train() and not self._only_infers():
                self._error = self._error or "an end before the first step of its optimizer (see its log)"
            if self._error is not None:
                self._error += _xmem_network.missing()
            if self._recording and self._steps.number == 0:
                self._tag_modules()
            self.write(state)
            self._finished = True
            self._values.end()
            _xmem_ranks.ended(self._torch)

    def _only_infers(self):
        """Whether memory was given back, as of activations, and no backward pass can follow; asked in its thread."""
        stats = map(self._torch._C._cuda_memoryStats, self._devices)
        gave_back = any(each["allocation"]["all"]["freed"] for each in stats)
        return gave_back and not self._torch._C._autograd._get_sequence_nr()

    def write(self, state):
        """Write the trace so far under `state`, one file a device: all of it or nothing, whatever happens meanwhile."""
        with self._lock:
            if self._finished:
                return
            for device, trace in self._traces(state):
                _xmem_process.write("%s-%d.json.gz" % (self._file, device), trace)

    def _traces(self, state):
        """Yield (device, trace) of each device that was used, and in any case of the first."""
        histories = [[]]
        if self._recording:
            self._counts()
            snapshot = self._torch.cuda.memory._snapshot()
            histories, last = snapshot["device_traces"], snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
            self._settings.setdefault(last, last)  # _set_allocator_settings adds to what the environment says
            self._pools.look(snapshot["segments"])
        for device, history in enumerate(histories):
            if history or device == 0:
                yield device, self._trace(state, device, history)

    def _trace(self, state, device, history):
        settings = ",".join(filter(None, self._settings.values()))
        ranks = _xmem_ranks.rank_and_size(self._torch)
        return {
            **_xmem_process.described(self._environ, self._build, settings, *ranks),
            "schema_version": SCHEMA_VERSION,
            "state": state,
            "error": self._error,
            "pid": self._pid,
            "device": device,
            "place": _xmem_device.place(device),
            "lived": [self._started, time.monotonic()],
            "events": {
                "action": [event["action"] for event in history],
                "address": [event.get("addr", 0) for event in history],
                "size": [event["size"] for event in history],
                "stream": self._pools.streams(device, history),
            },
            "sites": {"found": self._sites.found, "of": self._sites.of(history)},
            "marks": [
                {"kind": kind, "allocations": counts[device], "seconds": seconds}
                for kind, counts, seconds in self._marks
            ],
            "tags": [
                {
                    "category": category,
                    "allocations": counts[device],
                    "addresses": list(addresses[device]),
                    "names": list(addresses[device].values()) if any(addresses[device].values()) else [],
                }
                for category, counts, addresses in self._tags
                if device in addresses
            ],
            "recorded": self._peaks.get(device, {}),
            "doubts": self._doubts(state),
            "peers": _xmem_peers.differing(),
            "changed": _xmem_advice.changed(),
        }

    def _doubts(self, state):
        found = [] if self._runtime is None else _xmem_device.doubts(self._runtime)
        found += [*self._epochs.doubts(state == "exit" and self._error is None), *self._values.doubts()]
        if self._recording and not self._has_optimizer():
            found.append({"code": "no-optimizer", "detail": "the script made none", "count": 1})
        return [
            *found,
            *self._pools.doubts(),
            *_xmem_ranks.doubts(),
            *_xmem_triton.doubts(),
            *_xmem_streams.doubts(),
            *_xmem_known.doubts(),
            *_xmem_downloads.doubts(),
        ]

    def _has_optimizer(self):
        return self._steps.number > 0 or _xmem_alive.any_made(self._torch.optim.Optimizer)
