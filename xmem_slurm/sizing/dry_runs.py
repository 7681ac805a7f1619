"""What do dry runs say of which GPUs? There is one for each kind of GPU, of rank 0 and others, of an array's ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import ranks
from xmem_slurm.dryrun.budget import Spent
from xmem_slurm.dryrun.exchange import Orders, SharedBudget
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing import kernels
from xmem_slurm.sizing.estimate import Estimate, estimate
from xmem_slurm.sizing.margins import NO_EXPERIENCE, Experience
from xmem_slurm.trace import Noted, Trace, fail_on_any_gpu


@dataclass
class DryRunsByKind:
    """The dry runs of one job: one for each kind of GPU, and one budget for all of them.

    What a job allocates depends on the GPU (attention kernels, library workspaces, what the job reads of it), so a
    trace speaks for the GPUs of its own compute capability and number of multiprocessors only. All components of a job
    are shown the same kind at a time.
    """

    order: DryRunOrder
    """What is common to them."""
    gpus: Mapping[str, Gpu]
    budget: SharedBudget
    experience: Experience = NO_EXPERIENCE
    longest: Spent = Spent()  # noqa: RUF009 - a tuple
    results: dict[tuple[str, int], Sequence[Trace] | NoEstimate] = field(default_factory=dict)

    def on(self, name: str) -> Orders[Sequence[Trace]]:
        """Return the traces of the job on GPUs of the kind that option `name` has.

        Raises:
            NoEstimate: there are none.
        """
        kind = self.kind(name)
        if kind not in self.results:
            self.results[kind] = yield from self._run(name)
        result = self.results[kind]
        if isinstance(result, NoEstimate):
            raise result
        return result

    def has_room_for(self, name: str) -> bool:
        """Whether the job was run on this kind of GPU, or can be within the budget."""
        return self.kind(name) in self.results or self.budget.left.has_room_for(self.longest)

    def kind(self, name: str) -> tuple[str, int]:
        """Return what GPUs have in common for which one trace speaks."""
        gpu = self.gpus[name]
        return gpu.capability, gpu.multiprocessors

    def _run(self, name: str) -> Orders[Sequence[Trace] | NoEstimate]:
        """Want the job, or the tasks of its array that stand for it, run on this option's kind of GPU."""
        before, job = self.budget.spent, self.order.job
        try:
            traces: list[Trace] = []
            for each in [job.as_task(task) for task in _tasks_of_array(self.order)] or [job]:
                traces += yield from ranks.run(replace(self.order, job=each, gpu=self.gpus[name]), self.budget)
                if fail_on_any_gpu(traces):
                    break
            self.order = ranks.with_others(self.order, traces) or self.order
            return [_with_array(trace, self.order) for trace in traces]
        except NoEstimate as error:
            return error
        finally:
            self.longest = max(self.longest, self.budget.spent.since(before))


def _tasks_of_array(order: DryRunOrder) -> Sequence[int]:
    """Return the tasks of an array that are run: those that are asked for, else the ends of it.

    The first and the last, as sweeps grow; the larger counts. None of a job that is no array.
    """
    environ = order.job.environ
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return []
    ends = [int(environ[f"SLURM_ARRAY_TASK_{end}"]) for end in ("MIN", "MAX")]
    return order.array_tasks or list(dict.fromkeys(ends))


def _with_array(trace: Trace, order: DryRunOrder) -> Trace:
    """Say so in the trace if it stands for tasks of an array that were not run."""
    ran, count = _tasks_of_array(order), int(order.job.environ.get("SLURM_ARRAY_TASK_COUNT") or 0)
    if count <= len(ran):
        return trace
    noted = Noted(Doubt.ARRAY, f"of the array's {count} tasks only {' and '.join(map(str, ran))} ran", count - len(ran))
    return replace(trace, doubts=[*trace.doubts, noted])


@dataclass
class ComponentEstimates:
    """What the dry runs say of one component. `sure` is the option that it is meant for.

    Where the component fails there, too, the fault is the job's.
    """

    dry_runs: DryRunsByKind
    component: int
    sure: str
    results: dict[tuple[str, int], Estimate | NoEstimate] = field(default_factory=dict)
    arch_list: Sequence[str] = ()
    """What the job's torch has kernels for, once that was seen."""
    no_share: str = ""
    """Why it was given no share of a GPU on which it fits."""

    def has_kernels(self, name: str) -> bool:
        """Whether the job's torch runs on the GPU of option `name`, as far as is known."""
        return kernels.run_on(self.arch_list, self.dry_runs.gpus[name].capability)

    def on(self, name: str) -> Orders[Estimate]:
        """Return the estimate on the GPU of option `name`, from a dry run of its kind.

        Raises:
            NoEstimate: there is none.
        """
        kind = self.dry_runs.kind(name)
        if kind not in self.results:
            self.results[kind] = yield from self._estimate(name)
        result = self.results[kind]
        if isinstance(result, NoEstimate):
            raise result
        return result

    def fits(self, name: str) -> Orders[bool]:
        """Whether the component fits option `name`; on a kind of GPU not tried yet, by a dry run if that could succeed.

        It is not tried where the component does not fit by the traces at hand, or where the budget has no room for
        another run; and it does not fit where that run fails, as that of a torch that was not built for the GPU does.
        The next option is dearer, never too small. A script that stops by itself is told at once.
        """
        gpu = self.dry_runs.gpus[name]
        if not self.has_kernels(name):
            return False
        if self.dry_runs.kind(name) not in self.results:
            known = [result for result in self.results.values() if isinstance(result, Estimate)]
            if known and not any(estimate.fits(gpu) for estimate in known):
                return False
            if not self.dry_runs.has_room_for(name):
                return False
        try:
            return (yield from self.on(name)).fits(gpu)
        except NoEstimate as error:
            if error.on_any_gpu:
                raise
            if self.has_kernels(name) and self.has_kernels(self.sure):
                yield from self.on(self.sure)
            return False

    def _estimate(self, name: str) -> Orders[Estimate | NoEstimate]:
        """Make an estimate of the component's own traces; all that was read counts, whoever of the job read it."""
        try:
            traces = yield from self.dry_runs.on(name)
        except NoEstimate as error:
            return error
        own = [trace for trace in traces if trace.component == self.component]
        self.arch_list = next((trace.arch_list for trace in own if trace.arch_list), self.arch_list)
        files = [file for trace in traces for file in trace.files]
        if len(own) < len(traces) and not any(trace.allocations or trace.error for trace in own):
            return NoEstimate("no process of its own used GPU memory in the dry run", files, on_any_gpu=True)
        if not self.has_kernels(name):
            return NoEstimate(without_kernels(name, self.dry_runs.gpus[name], self.arch_list), files)
        try:
            return estimate(own, name, self.dry_runs.gpus[name], self.dry_runs.experience)
        except NoEstimate as error:
            return NoEstimate(str(error), files, on_any_gpu=fail_on_any_gpu(own))


def without_kernels(name: str, gpu: Gpu, arch_list: Sequence[str]) -> str:
    """Say that the job's torch cannot run on a GPU."""
    compiled = ", ".join(arch_list)
    return f"the job's torch has no kernels for {name} (compute capability {gpu.capability}): it has {compiled}"
