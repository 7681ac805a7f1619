"""What does a job ask for, once its script, the environment and the command line are put together,
and who said it?

sbatch's order (sbatch(1), INPUT ENVIRONMENT VARIABLES; `process_options_second_pass` in
src/sbatch/opt.c): script, then SBATCH_* variables, then command line; the last one wins. In a
heterogeneous job this happens for each component: the environment is the same for all, the last
component of the command line serves for the rest of the script's, and options that `Option.carried`
marks keep their value from one component to the next. Before all that, sbatch reads the whole
command line once, without its ":" and as if it were environment (`process_options_first_pass`): so
a `--mem` of the second component is also the first one's, if that has none.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from xmem_slurm.slurm import gres
from xmem_slurm.slurm.command_line import CommandLine
from xmem_slurm.slurm.options import NONE, OPTIONAL, SBATCH, Occurrence
from xmem_slurm.slurm.script import Directive, Script

GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "tres-per-task")
"""Every option that can ask for GPUs."""

MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")
"""Host memory: sbatch ends with an error if a job sets more than one of them."""


class Source(StrEnum):
    """Where an option was set."""

    SCRIPT = "script"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


class Setting(NamedTuple):
    """The value that one option ends up with. `where` is for people; `place` is what an edit needs.

    `place` is a Directive of the script, an Occurrence of the command line, or the name of an
    environment variable. `value` is None for a flag.
    """

    name: str
    value: str | None
    source: Source
    where: str
    place: Directive | Occurrence | str


class GpuRequest(NamedTuple):
    """GPUs, or shares of one, that one entry of one option asks for.

    `resource` is `gpu`, `shard` or `mps`; `type` is None if none was typed.
    """

    resource: str
    type: str | None
    amount: int
    setting: Setting


class Request(NamedTuple):
    """What one component of a job asks for; an ordinary job is its own only component."""

    settings: Mapping[str, Setting]
    default_name: str | None
    foreign: str | None
    """`PBS` or `BSUB`: sbatch also translates such lines of this script, and what they ask for is
    not in `settings`."""
    other_components: tuple["Request", ...] = ()
    """The components after the first, in the first one."""

    @property
    def components(self) -> tuple["Request", ...]:
        """All components, this one first."""
        return (self, *self.other_components)

    def alone(self, component: int) -> "Request":
        """Return what one component asks for, as a job of its own."""
        return self.components[component]._replace(other_components=())

    def value(self, name: str) -> str | None:
        """Return the value of an option; None if it is not set, or is a flag."""
        setting = self.settings.get(name)
        return None if setting is None else setting.value

    @property
    def accelerators(self) -> tuple[GpuRequest, ...]:
        """Every entry that asks for GPUs or shares of one, in the order of GPU_OPTIONS.

        Raises:
            gres.GresError: a list cannot be read.
        """
        requests: list[GpuRequest] = []
        for name in GPU_OPTIONS:
            setting = self.settings.get(name)
            if setting is None or not setting.value:
                continue
            requests += [
                GpuRequest(entry.name, entry.type, entry.amount, setting)
                for entry in gres.parse_option(name, setting.value)
                if (entry.is_gpu or entry.is_share) and entry.amount > 0
            ]
        return tuple(requests)

    @property
    def gpus(self) -> tuple[GpuRequest, ...]:
        """The entries that ask for whole GPUs or MIG instances."""
        return tuple(request for request in self.accelerators if request.resource == gres.GPU)

    @property
    def with_gpus(self) -> tuple[int, ...]:
        """The numbers of the components that ask for a GPU or a share of one."""
        return tuple(
            index for index, component in enumerate(self.components) if component.accelerators
        )

    @property
    def asks_for_gpu(self) -> bool:
        """Whether any component asks for a GPU or a share of one."""
        return bool(self.with_gpus)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types that were typed, each once."""
        return tuple(
            dict.fromkeys(request.type for request in self.gpus if request.type is not None)
        )

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs on each node, types added up; None where the request leaves it to the scheduler."""
        if not self.gpus:
            return 0
        per_node, total = self._amount("gres") or self._amount("gpus-per-node"), self.gpus_total
        if per_node or total is None:
            return per_node or None
        nodes = 1 if total == 1 else self.nodes
        return total // nodes if nodes and total % nodes == 0 else None

    @property
    def gpus_total(self) -> int | None:
        """GPUs of the component, types added up; None where the request leaves it to the
        scheduler.
        """
        if not self.gpus:
            return 0
        total = self._amount("gpus")
        per_node = self._amount("gres") or self._amount("gpus-per-node")
        per_task = self._amount("gpus-per-task") or self._amount("tres-per-task")
        if total:
            return total
        if per_node:
            return per_node * (self.nodes or 1)
        return per_task * self.ntasks if per_task else None

    def _amount(self, name: str) -> int:
        return sum(request.amount for request in self.gpus if request.setting.name == name)

    @property
    def nodes(self) -> int | None:
        """The least number of nodes asked for, also by `--ntasks` with `--ntasks-per-node`; or
        None.
        """
        text = (self.value("nodes") or "").partition("-")[0]
        if text.isdecimal():
            return int(text)
        tasks, per_node = self._number("ntasks"), self._number("ntasks-per-node")
        return -(-tasks // per_node) if tasks and per_node else None

    @property
    def ntasks(self) -> int:
        """Number of tasks: as asked for, as many as the GPUs are for (sbatch(1)), or one for each
        node.
        """
        gpus = self._amount("gpus") or (self._amount("gres") or self._amount("gpus-per-node")) * (
            self.nodes or 1
        )
        of_gpus = gpus * self._number("ntasks-per-gpu")
        if self._amount("gpus") and self._amount("gpus-per-task"):
            of_gpus = self._amount("gpus") // self._amount("gpus-per-task")
        return (
            self._number("ntasks")
            or of_gpus
            or (self.nodes or 1) * (self._number("ntasks-per-node") or 1)
        )

    @property
    def tasks_per_node(self) -> int:
        """Number of tasks on a node."""
        return max(1, self.ntasks // (self.nodes or 1))

    @property
    def cpus_per_task(self) -> int | None:
        """CPUs for each task, or None."""
        return self._number("cpus-per-task") or None

    @property
    def cpus_per_node(self) -> int:
        """CPUs of a node that the job needs: for its GPUs, or for its tasks."""
        for_gpus = self._number("cpus-per-gpu") * (self.gpus_per_node or 1)
        return for_gpus or (self.cpus_per_task or 1) * self.tasks_per_node

    def _number(self, name: str) -> int:
        text = self.value(name) or ""
        return int(text) if text.isdecimal() else 0

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partitions named, in order."""
        return tuple(name for name in (self.value("partition") or "").split(",") if name)

    @property
    def memory(self) -> tuple[Setting, ...]:
        """The host memory options that are set; sbatch refuses more than one."""
        return tuple(self.settings[name] for name in MEMORY_OPTIONS if name in self.settings)

    @property
    def constraint(self) -> str | None:
        """The feature expression, or None."""
        return self.value("constraint")

    @property
    def chdir(self) -> str | None:
        """The job's working directory, as given; None means the directory of submission."""
        return self.value("chdir")

    @property
    def for_another_user(self) -> bool:
        """Whether root submits the job as somebody else's: it must not be run here."""
        return any(self.value(name) is not None for name in ("uid", "gid"))

    @property
    def job_name(self) -> str | None:
        """The job's name; None if Slurm picks it (a script on stdin)."""
        return self.value("job-name") or self.default_name


def merge(command_line: CommandLine, environ: Mapping[str, str], script: Script | None) -> Request:
    """Put the three together; `script` is None for `--wrap`, in whose text sbatch reads no
    options.
    """
    default_name: str | None = None
    if command_line.wrap is not None:
        script, default_name = None, "wrap"
    elif command_line.script is not None:
        default_name = command_line.script.rpartition("/")[2]
    of_script = script.components if script is not None else ()
    count = max(len(of_script), len(command_line.components))
    requests: list[Request] = []
    settings: dict[str, Setting] = {}
    _take_command_line(settings, command_line.first_pass)
    first_pass_memory = settings.get("mem")
    for index in range(count):
        settings = {
            name: setting for name, setting in settings.items() if SBATCH.by_name[name].carried
        }
        if index < len(of_script):
            _take_script(settings, of_script[index].directives)
        _take_environment(settings, environ)
        _take_command_line(
            settings, command_line.components[min(index, len(command_line.components) - 1)]
        )
        _drop_overruled_memory(settings, first_pass_memory)
        foreign = script.foreign if script is not None and "ignore-pbs" not in settings else None
        requests.append(Request(dict(settings), default_name, foreign))
    return requests[0]._replace(other_components=tuple(requests[1:]))


def _take_script(settings: dict[str, Setting], directives: tuple[Directive, ...]) -> None:
    for directive in directives:
        occurrence = directive.occurrence
        if _counts(occurrence):
            where = f"line {directive.line} of the script"
            settings[occurrence.name] = Setting(
                occurrence.name, occurrence.value, Source.SCRIPT, where, directive
            )


def _take_environment(settings: dict[str, Setting], environ: Mapping[str, str]) -> None:
    """Apply the SBATCH_* variables. A flag's variable can also take the flag away
    (`slurm_process_option`).
    """
    for option in SBATCH.options:
        for variable in option.variables:
            value = environ.get(variable)
            if value is None or option.early:
                continue
            if option.arity == NONE and not _is_yes(value):
                settings.pop(option.name, None)
                continue
            kept = (
                None if option.arity == NONE or (option.arity == OPTIONAL and not value) else value
            )
            settings[option.name] = Setting(
                option.name, kept, Source.ENVIRONMENT, variable, variable
            )


def _take_command_line(settings: dict[str, Setting], occurrences: tuple[Occurrence, ...]) -> None:
    for occurrence in occurrences:
        if _counts(occurrence):
            where = f"{occurrence.typed} on the command line"
            setting = Setting(
                occurrence.name, occurrence.value, Source.COMMAND_LINE, where, occurrence
            )
            settings[occurrence.name] = setting


def _counts(occurrence: Occurrence) -> bool:
    """Whether this is an option of sbatch's own that says something about the job."""
    option = occurrence.option
    return option is not None and option.name in SBATCH.by_name and not option.early


def _is_yes(value: str) -> bool:
    if value == "" or value.lower() == "yes":
        return True
    return value.lstrip("+-").isdecimal() and int(value) != 0


def _drop_overruled_memory(settings: dict[str, Setting], first_pass: Setting | None) -> None:
    """A memory option of script or command line overrules those of the environment
    (`_validate_memory_options`).
    """
    memory_settings = [settings[name] for name in MEMORY_OPTIONS if name in settings]
    weak = [
        setting
        for setting in memory_settings
        if setting.source is Source.ENVIRONMENT or setting is first_pass
    ]
    if len(weak) < len(memory_settings):
        for setting in weak:
            del settings[setting.name]
