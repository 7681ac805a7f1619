"""Records what one process asks of torch's caching allocator, and writes it as a trace (form: xmem_slurm/trace.py)."""

import atexit
import contextlib
import ctypes
import functools
import gc
import gzip
import importlib
import json
import os
import signal
import sys
import threading
import time

SCHEMA_VERSION = 1
STEADY_STEPS = 3
"""So many optimizer steps in a row without a new peak, and the run is steady: the first step lacks the optimizer's
state, the second is the first whole one."""
STEADY_SECONDS = 1.0
"""Cheap steps go on for at least this long: kernels cost nothing here, and more steps show more of the job."""
TAGGED_STEPS = 8
"""Steps at which the tensors of parameters, gradients and optimizer state are looked up."""
CHECKPOINT_SECONDS = 5.0
"""How often the trace so far is written, so that a process that is killed still leaves one."""
REPORT_BYTES = 1 << 16


class Recorder:
    """One per process that imports torch. A forked child that touches CUDA itself records on its own.

    With XMEM_DEADLINE (a time.monotonic() value) a process ends once it is steady; without, it runs to its end.
    """

    def __init__(self, map_stand_ins):
        self._map_stand_ins = map_stand_ins
        self._folder = os.environ["XMEM_TRACE_DIR"]
        self._deadline = float(os.environ.get("XMEM_DEADLINE", "inf"))
        self._lock = threading.RLock()
        self._torch = None
        self._runtime = None
        self._build = ("unknown", None)
        self._state = "importing"
        self._error = None
        self._forget()

    def _forget(self):
        """Start as a process that has seen nothing: at first, and in a forked child."""
        self._pid = os.getpid()
        self._file = os.path.join(self._folder, "%d-%d.json.gz" % (self._pid, time.monotonic_ns()))
        self._recording = False
        self._finished = False
        self._marks = []
        self._tags = []
        self._steps = {}
        self._steps_since_peak = {}
        self._peak = None
        self._first_step = None

    # -- around `import torch` -----------------------------------------------------------------------------------------

    def before_torch(self, folder):
        """Map the stand-ins, or end this process: without them torch would compute for real on a login node's CPU."""
        from _xmem_import import torch_build

        try:
            self._build = torch_build(folder)
            if self._build[1] is None:
                raise RuntimeError("torch %s in %s is not a CUDA build" % (self._build[0], folder))
            self._runtime = self._map_stand_ins(folder)
        except Exception as error:
            self._error = str(error)
            self.write("failed")
            os._exit(1)
        self.write("importing")

    def torch_failed(self, error):
        """`import torch` raised; the job will say so itself."""
        self._error = _one_line(error)
        self.write("failed")

    def after_torch(self, torch):
        """Hook in: nothing is recorded before CUDA is first used, so that forking stays as safe as it was."""
        self._torch = torch
        self._state = "running"
        torch.cuda._lazy_call(self._start)
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._after_step)
        torch.autograd.backward = self._around_backward(torch.autograd.backward)
        self._hook_exits()

    def _start(self):
        with self._lock:
            self._torch.cuda.memory._record_memory_history(max_entries=sys.maxsize, context=None)
            self._recording = True
        threading.Thread(target=self._watch, name="xmem", daemon=True).start()

    # -- while the job runs --------------------------------------------------------------------------------------------

    def _around_backward(self, backward):
        @functools.wraps(backward)
        def wrapped(*args, **kwargs):
            self._mark("backward")
            try:
                return backward(*args, **kwargs)
            finally:
                self._mark("backward_end")

        return wrapped

    def _mark(self, kind):
        if self._recording:
            count = self._stats()["allocation"]["all"]["allocated"]
            self._marks.append({"kind": kind, "allocations": count, "seconds": time.monotonic()})

    def _stats(self):
        return self._torch._C._cuda_memoryStats(self._torch.cuda.current_device())

    def _after_step(self, optimizer, _args, _kwargs):
        if not self._recording:
            return
        self._mark("step")
        number = self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1
        if number <= TAGGED_STEPS:
            self._tag_optimizer(optimizer)
        if number == 1:
            self._tag_modules()
        if self._is_steady(id(optimizer)) and self._deadline != float("inf"):
            self.finish("steady")
            os._exit(0)

    def _is_steady(self, stepped):
        """Whether every optimizer has stepped often enough since the peak last grew."""
        stats = self._stats()
        peak = (stats["allocated_bytes"]["all"]["peak"], stats["reserved_bytes"]["all"]["peak"])
        now = time.monotonic()
        if self._first_step is None:
            self._first_step = now
        if peak != self._peak:
            self._peak = peak
            self._steps_since_peak = dict.fromkeys(self._steps, 0)
        else:
            self._steps_since_peak[stepped] = self._steps_since_peak.get(stepped, 0) + 1
        return min(self._steps_since_peak.values()) >= STEADY_STEPS and now - self._first_step >= STEADY_SECONDS

    def _tag(self, category, tensors):
        addresses = set()
        for each in tensors:
            tensor = getattr(each, "_local_tensor", each)  # a DTensor's own part
            if isinstance(tensor, self._torch.Tensor) and tensor.is_cuda:
                with contextlib.suppress(Exception):  # a tensor without storage of its own, a subclass that forbids it
                    addresses.add(tensor.untyped_storage().data_ptr())
        if addresses:
            count = self._stats()["allocation"]["all"]["allocated"]
            self._tags.append({"category": category, "allocations": count, "addresses": sorted(addresses)})

    def _tag_optimizer(self, optimizer):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._tag("PARAM", parameters)
        self._tag("GRAD", [p.grad for p in parameters if p.grad is not None])
        self._tag("OPT", [v for state in optimizer.state.values() if isinstance(state, dict) for v in state.values()])

    def _tag_modules(self):
        """Parameters and buffers of every module alive: those that no optimizer holds are memory too."""
        module = self._torch.nn.Module
        modules = [thing for thing in gc.get_objects() if issubclass(type(thing), module)]
        with contextlib.suppress(Exception):  # a module that is half built
            self._tag("PARAM", [p for m in modules for p in m._parameters.values() if p is not None])
            self._tag("BUFFER", [b for m in modules for b in m._buffers.values() if b is not None])

    # -- the ends of a process -----------------------------------------------------------------------------------------

    def _hook_exits(self):
        atexit.register(self.finish, "exit")
        os.register_at_fork(after_in_child=self._in_child)
        leave = os._exit

        def noted_exit(status):
            self.finish("exit")
            leave(status)

        os._exit = noted_exit
        show = sys.excepthook

        def noted_exception(kind, value, trace):
            self._error = _one_line(value)
            show(kind, value, trace)

        sys.excepthook = noted_exception
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)

    def _in_child(self):
        self._lock = threading.RLock()
        recorded = self._recording
        self._forget()
        if not recorded:
            return
        self._finished = True  # CUDA cannot be used again after a fork; this child has no trace of its own

    def _terminated(self, _signum, _frame):
        self.finish("signal")
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _watch(self):
        """Write the trace every few seconds, and a last time when the budget is spent."""
        pid, pause = os.getpid(), CHECKPOINT_SECONDS
        while not self._finished and os.getpid() == pid:
            left = self._deadline - time.monotonic()
            time.sleep(max(0.0, min(pause, left)))
            began = time.monotonic()
            if began >= self._deadline:
                self.finish("budget")
                return
            self.write("running")
            pause = max(CHECKPOINT_SECONDS, 20 * (time.monotonic() - began))

    def finish(self, state):
        """Write the trace for the last time."""
        with self._lock:
            if not self._finished and self._pid == os.getpid():
                if self._recording and not self._steps:
                    self._tag_modules()
                self.write(state)
                self._finished = True

    def write(self, state):
        """Write the trace so far under `state`: all of it or nothing, whatever happens meanwhile."""
        with self._lock:
            if self._finished:
                return
            part = self._file + ".part"
            with gzip.open(part, "wt", compresslevel=1, encoding="utf-8") as file:
                json.dump(self._trace(state), file, separators=(",", ":"))
            os.replace(part, self._file)

    def _trace(self, state):
        trace = {
            "schema_version": SCHEMA_VERSION,
            "state": state,
            "error": self._error,
            "pid": os.getpid(),
            "argv": list(getattr(sys, "orig_argv", None) or [sys.executable, *getattr(sys, "argv", [])]),
            "rank": int(os.environ.get("RANK") or 0),
            "world_size": int(os.environ.get("WORLD_SIZE") or 1),
            "torch_version": self._build[0],
            "cuda_version": self._build[1],
            "allocator_settings": os.environ.get("PYTORCH_ALLOC_CONF", os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")),
            "gpu": {
                "name": os.environ["XMEM_DEVICE_NAME"],
                "capability": os.environ["XMEM_DEVICE_CAPABILITY"],
                "multiprocessors": int(os.environ["XMEM_DEVICE_MULTIPROCESSORS"]),
                "total_bytes": int(os.environ["XMEM_DEVICE_TOTAL_BYTES"]),
            },
            "events": {"action": [], "address": [], "size": [], "stream": []},
            "marks": self._marks,
            "tags": self._tags,
            "recorded": {},
            "doubts": self._doubts(),
        }
        if self._recording:
            device = self._torch.cuda.current_device()
            history = self._torch.cuda.memory._snapshot()["device_traces"][device]
            trace["events"] = {
                "action": [event["action"] for event in history],
                "address": [event.get("addr", 0) for event in history],
                "size": [event["size"] for event in history],
                "stream": [event["stream"] for event in history],
            }
            stats = self._stats()
            for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
                trace["recorded"][name] = stats[name]["all"]["peak"]
        return trace

    def _doubts(self):
        if self._runtime is None:
            return []
        text = ctypes.create_string_buffer(REPORT_BYTES)
        self._runtime.xmem_device_report(text, ctypes.c_size_t(REPORT_BYTES))
        return json.loads(text.value.decode() or "[]")


def _one_line(error):
    text = str(error).strip()
    return "%s: %s" % (type(error).__name__, text.splitlines()[0]) if text else type(error).__name__
