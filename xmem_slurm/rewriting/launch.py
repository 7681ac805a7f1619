"""Which command of a job's script starts its processes, and how does it start others, with what
else is changed?

It is found by what a dry run saw start (`program`), not by what a text looks like: that word stands
in one command of the script. Changed is that command alone: variables before it, the launcher's
number of processes, arguments behind the program or in variables that are named there. A variable
that the script itself reads is set where it begins, too: one before a command does not reach that
command's own words. Where the script has the launching otherwise (in a variable, in another script)
nothing can be changed, and that is said.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from xmem_slurm.errors import UsageError
from xmem_slurm.slurm import body
from xmem_slurm.slurm.body import Word

Kind = Literal["torchrun", "accelerate", "deepspeed", "srun", "python"]
_LAUNCHERS: Mapping[str, Kind] = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
}
_MODULES: Mapping[str, Kind] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_PYTHON = re.compile(r"python[\d.]*")
_WITH_VALUES = ("-X", "-W")
"""Options of Python whose value is the next word (python(1))."""
_MEETING = (
    '--rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$(scontrol show '
    'hostnames | head -n 1):29500"'
)
"""How the torchruns of several nodes find each other; scontrol takes the job's own nodes
(SLURM_JOB_NODELIST)."""
_CPUS = "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"
"""Since 22.05 srun does not take it from the job (srun(1), --cpus-per-task)."""
_BEGINNING = re.compile(rb"(?:[ \t\r]*(?:#[^\n]*)?\n)*")
"""Comments and empty lines, Slurm's own among them."""
_MADE = re.compile(rb"[$`(]")
"""In a value that is made of others when the script runs."""
_OF_TASKS = re.compile(
    r"(?P<option>-n|--ntasks|--ntasks-per-node|-N|--nodes)(?P<value>(?:=|(?<=-[nN]))\d+)?"
)
_OF_GPUS = re.compile(
    r"-G.*|--(?:gres|gpus(?:-per-node|-per-socket|(?P<by_task>-per-task))?|tres-per-task)(?:=.*)?"
)
_OF_CHOSEN: Mapping[Kind, re.Pattern[str]] = {
    "deepspeed": re.compile(r"(?P<option>--(?:include|exclude)|-[ie])(?:=(?P<value>.*))?"),
    "accelerate": re.compile(r"(?P<option>--gpu[-_]ids)(?:=(?P<value>.*))?"),
}
"""What names the GPUs of a node that processes are started on.

Source: deepspeed/launcher/runner.py (0.19) and accelerate/commands/launch.py (1.15).
"""
_NAMES_HOSTS = "{} names hosts: how many processes are started on each cannot be changed"
_OF_HOSTS = re.compile(r"--deepspeed[-_](?:in|ex)clusion[-_]filter(?:=.*)?")


class Launch(NamedTuple):
    """The command that starts the processes; `starter` and `program` are the places of two of its
    words.
    """

    kind: Kind
    words: Sequence[Word]
    starter: int
    program: int

    @property
    def is_module(self) -> bool:
        """Whether the program is named as a module (-m)."""
        return _text(self.words[self.program - 1]) in ("-m", "--module")


class Processes(NamedTuple):
    """So many on each of so many nodes."""

    nodes: int
    per_node: int


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


class _NamedGpus(NamedTuple):
    """An option that names GPUs, as it is spelled, and its value: `script[start:end]` is both."""

    option: str
    value: str
    start: int
    end: int


def find(script: bytes, program: str) -> Launch:
    """Return the command in which the program stands that a dry run saw start.

    Raises:
        UsageError: it stands in none, or in several.
    """
    launches = [
        launch
        for words in body.commands_at(script)
        if (launch := _launch(words, program)) is not None
    ]
    if len(launches) != 1:
        where = "no command" if not launches else f"{len(launches)} commands"
        raise UsageError(
            f"{where} of the job's script has the word {program}: how it is launched cannot be "
            "changed"
        )
    return launches[0]


def _launch(words: Sequence[Word], program: str) -> Launch | None:
    """Return how a command starts the program; None where it does not."""
    texts = [_text(word) for word in words]
    at = next((at for at, text in enumerate(texts) if at and text == program), None)
    if at is None:
        return None
    names = [text.rpartition("/")[2] for text in texts[:at]]
    for place, name in enumerate(names):
        module = _module(texts[place:at])
        kind = _LAUNCHERS.get(name) or (_MODULES.get(texts[place + module]) if module else None)
        if kind is not None:
            return Launch(kind, words, place, at)
    python = next((place for place, name in enumerate(names) if _PYTHON.fullmatch(name)), None)
    if python is None:
        return None
    return Launch("srun" if "srun" in names[:python] else "python", words, python, at)


def _module(texts: Sequence[str]) -> int:
    """Return the place of the module that the Python is to run with which a command begins, behind
    options of its own and -m; 0 where it runs none, or is no Python.
    """
    place = 1 if _PYTHON.fullmatch(texts[0].rpartition("/")[2]) else len(texts)
    while place < len(texts) and texts[place].startswith("-") and texts[place] != "-m":
        place += 2 if texts[place] in _WITH_VALUES else 1
    return place + 1 if place + 1 < len(texts) and texts[place] == "-m" else 0


def changed(
    script: bytes,
    launch: Launch,
    processes: tuple[Processes, Processes],
    *,
    variables: Mapping[str, str],
    arguments: Mapping[str, str],
    other_gpus: bool = False,
) -> bytes:
    """Return the script that launches the program so; `processes` are those before and after.

    With `other_gpus` the job asks for another number of GPUs than before: which of them the
    launcher is told to use is no longer right, even if there are as many processes.

    Raises:
        UsageError: this launcher cannot be told so on its command line.
    """
    before, after = processes
    is_same = before == after and not (other_gpus and _chosen(script, launch))
    edits = [] if is_same else _processes(script, launch, before, after)
    first, program = launch.words[0], launch.words[launch.program]
    if variables:
        prefix = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        edits.append(_Edit(_start(script, first), _start(script, first), f"{prefix} "))
        begin = _BEGINNING.match(script).end()  # type: ignore[union-attr]
        for name in sorted(body.read_variables(script) & set(variables)):
            edits += _assigned(script, name, variables[name])
            edits.append(_Edit(begin, begin, f"export {name}={shlex.quote(variables[name])}\n"))
    missing = []
    reach = []
    if arguments:
        reach = body.filled_in(script, _end(script, program), _end(script, launch.words[-1]))
    for option, value in arguments.items():
        option_edits = _argument(script, option, value)
        script_edits = [
            edit for edit in option_edits if any(start <= edit.start <= end for start, end in reach)
        ]
        edits += script_edits
        missing += [] if script_edits else [f" {option} {shlex.quote(value)}"]
    if missing:
        # A section's options ("--trainer.devices") go last: behind a subcommand, and behind a file
        # that has them, too.
        last = launch.words[-1] if all("." in option for option in arguments) else program
        edits.append(_Edit(_end(script, last), _end(script, last), "".join(missing)))
    return _applied(script, edits)


def with_assigned(script: bytes, name: str, value: str) -> bytes:
    """Return the script with that value wherever it assigns one to the variable that is written
    out.
    """
    return _applied(script, _assigned(script, name, value))


def _assigned(script: bytes, name: str, value: str) -> list[_Edit]:
    places = [assignment for assignment in body.assignments(script) if assignment.name == name]
    plain = [at for at in places if _MADE.search(script, at.start, at.end) is None]
    return [_Edit(at.start, at.end, shlex.quote(value)) for at in plain]


def _applied(script: bytes, edits: Sequence[_Edit]) -> bytes:
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = edit.text.encode(errors="surrogateescape")
        script = script[: edit.start] + text + script[edit.end :]
    return script


def _argument(script: bytes, option: str, value: str) -> list[_Edit]:
    """Return what gives an option that value wherever it stands with one like it, or with a
    variable.

    Dashes and underscores are alike.
    """
    name = option if option.startswith("-") else f"--{option}"
    is_short = len(name) == len("-b")
    name = name if is_short else "--" + re.sub("[-_]", "[-_]", name.lstrip("-"))
    between = "=?[ \\t]*" if is_short else "(?:=|[ \\t]+)"
    number = r"\d+|\$\w+|\$\{[^}\s]*\}"
    kind = r"(?!-)[^\s\"';&|]+"
    if value in ("True", "False"):
        kind = r"(?i:true|false)"
    elif value.isdecimal():
        kind = number
    pattern = re.compile(rf"(?<![\w-]){name}{between}[\"']?({kind})(?![\w.])".encode())
    if value in ("True", "False"):
        alone = re.compile(rf"(?<![\w-]){name}(?![\w=.-])(?![ \t]+[\"']?{kind}(?![\w.]))".encode())
        edits = [_Edit(match.end(), match.end(), f" {value}") for match in alone.finditer(script)]
        return [*edits, *(_Edit(*match.span(1), value) for match in pattern.finditer(script))]
    return [_Edit(*match.span(1), shlex.quote(value)) for match in pattern.finditer(script)]


def _processes(script: bytes, launch: Launch, before: Processes, after: Processes) -> list[_Edit]:
    """Return what has the launcher start so many processes on each node."""
    words, spread = launch.words, before.nodes != after.nodes
    if not (launch.kind == "torchrun" and spread):
        _check_step(launch)
    if launch.kind == "srun":
        return _tasks(launch, after.nodes, after.per_node)
    if launch.kind == "python" or (launch.kind == "torchrun" and spread):
        first, program = words[_outermost(launch)], words[launch.program]
        return [
            _Edit(
                _start(script, first),
                _start(script, program),
                _torchrun(script, launch, after.nodes, after.per_node),
            )
        ]
    if spread:
        raise UsageError(f"{launch.kind} is not told of other nodes here; torchrun and srun are")
    if launch.kind == "accelerate":
        return _accelerate(script, launch, after)
    if launch.kind == "deepspeed" and (chosen := _chosen(script, launch)):
        return _deepspeed(chosen, after)
    option = {"torchrun": "nproc-per-node", "deepspeed": "num_gpus"}[launch.kind]
    return _option(launch, option, after.per_node)


def _chosen(script: bytes, launch: Launch) -> list[_NamedGpus]:
    """Return where the launcher is told on which GPUs of a node to start processes."""
    pattern, chosen = _OF_CHOSEN.get(launch.kind), list[_NamedGpus]()
    words = launch.words[launch.starter : launch.program]
    for place, word in enumerate(words):
        option = pattern.fullmatch(_text(word)) if pattern is not None else None
        if option is None:
            continue
        last = word if option["value"] is not None else next(iter(words[place + 1 :]), word)
        value = _text(last) if option["value"] is None else option["value"]
        chosen.append(_NamedGpus(option["option"], value, _start(script, word), _end(script, last)))
    return chosen


def _deepspeed(chosen: Sequence[_NamedGpus], after: Processes) -> list[_Edit]:
    """Return what has DeepSpeed use as many GPUs of its node in place of those that are named.

    It takes no number beside names of GPUs. The number stands for the first ones.

    Raises:
        UsageError: hosts are named, too, or that is not known.
    """
    for named_gpus in chosen:
        hosts = {host.partition(":")[0] for host in named_gpus.value.split("@")}
        if after.nodes > 1 or hosts != {"localhost"}:
            raise UsageError(
                _NAMES_HOSTS.format(f"deepspeed {named_gpus.option} {named_gpus.value}")
            )
    first, *further = chosen
    edit = _Edit(first.start, first.end, f"--num_gpus={after.per_node}")
    return [edit, *(_Edit(named_gpus.start, named_gpus.end, "") for named_gpus in further)]


def _accelerate(script: bytes, launch: Launch, after: Processes) -> list[_Edit]:
    """Return what has accelerate start so many processes, on all of the job's GPUs.

    Raises:
        UsageError: it has DeepSpeed choose among GPUs of several nodes.
    """
    words = [_text(word) for word in launch.words[launch.starter : launch.program]]
    of_hosts = next(filter(_OF_HOSTS.fullmatch, words), None)
    if of_hosts is not None and after.nodes > 1:
        option = of_hosts.partition("=")[0]
        raise UsageError(_NAMES_HOSTS.format(f"accelerate {option}"))
    every = [
        _Edit(named_gpus.start, named_gpus.end, f"{named_gpus.option}=all")
        for named_gpus in _chosen(script, launch)
    ]
    return [*_option(launch, "num_processes", after.per_node * after.nodes), *every]


def _check_step(launch: Launch) -> None:
    """Make sure that the srun in front asks for no number of GPUs itself, but for one of each task
    that is a process.

    Raises:
        UsageError: it does.
    """
    for word in launch.words[_outermost(launch) : launch.starter]:
        match = _OF_GPUS.fullmatch(_text(word))
        if match is not None and not (launch.kind == "srun" and match["by_task"]):
            raise UsageError(
                f"the srun that starts {_text(launch.words[launch.program])} asks for GPUs: "
                f"{match[0]}"
            )


def _outermost(launch: Launch) -> int:
    """Return the place of the first word that is the launching itself: an srun before torchrun is
    of it.
    """
    names = [_text(word).rpartition("/")[2] for word in launch.words[: launch.starter]]
    return names.index("srun") if "srun" in names else launch.starter


def _torchrun(script: bytes, launch: Launch, nodes: int, per_node: int) -> str:
    """Return the words before the program; on one GPU it needs no launcher, but torchrun sets the
    same variables. What is kept stays as it is written, variables and quotes included.
    """
    starter = _text(launch.words[launch.starter])
    is_python = bool(_PYTHON.fullmatch(starter.rpartition("/")[2]))
    words = launch.words[launch.starter : launch.program]
    # A module is kept, too: torchrun may not be on PATH.
    module = _module(list(map(_text, words))) if launch.kind == "torchrun" else 0
    torchrun = script[_start(script, words[0]) : _end(script, words[module])].decode(
        errors="surrogateescape"
    )
    if is_python and not module:
        torchrun = f"{torchrun} -m torch.distributed.run" if "/" in starter else "torchrun"
    named = "-m " if launch.is_module else ""
    if nodes == 1:
        return f"{torchrun} --standalone --nproc-per-node={per_node} {named}"
    on_each_node = f"srun --nodes={nodes} --ntasks={nodes} --ntasks-per-node=1 {_CPUS} {torchrun}"
    return f"{on_each_node} --nnodes={nodes} --nproc-per-node={per_node} {_MEETING} {named}"


def _option(launch: Launch, name: str, number: int) -> list[_Edit]:
    """Return what gives an option of the launcher a number, where it stands or behind the
    launcher's name.
    """
    wanted = re.sub("[-_]", "[-_]", name)
    words = launch.words[launch.starter : launch.program]
    for place, word in enumerate(words):
        text = _text(word)
        if re.fullmatch(f"--{wanted}", text) and place + 1 < len(words):
            value = words[place + 1]
            return [_Edit(value.at[0], value.at[-1] + 1, str(number))]
        if re.match(f"--{wanted}=", text):
            return [_Edit(word.at[text.index("=") + 1], word.at[-1] + 1, str(number))]
    of_launcher = {"accelerate": 1}.get(launch.kind, 0)
    last = words[_module(list(map(_text, words))) or of_launcher]
    return [_Edit(last.at[-1] + 1, last.at[-1] + 1, f" --{name}={number}")]


def _tasks(launch: Launch, nodes: int, per_node: int) -> list[_Edit]:
    """Return what has srun start so many tasks, where it says a number of its own, and not the
    job's request.
    """
    numbers = {"-n": nodes * per_node, "--ntasks": nodes * per_node, "--ntasks-per-node": per_node}
    numbers |= {"-N": nodes, "--nodes": nodes}
    edits = []
    words = launch.words[_outermost(launch) + 1 : launch.starter]
    for place, word in enumerate(words):
        match = _OF_TASKS.fullmatch(_text(word))
        if match is None:
            continue
        number = str(numbers[match["option"]])
        if match["value"] is None and place + 1 < len(words):
            edits.append(_Edit(words[place + 1].at[0], words[place + 1].at[-1] + 1, number))
        elif match["value"] is not None:
            edits.append(
                _Edit(
                    word.at[match.start("value") + match["value"].startswith("=")],
                    word.at[-1] + 1,
                    number,
                )
            )
    return edits


def _text(word: Word) -> str:
    return word.raw.decode(errors="surrogateescape")


def _start(script: bytes, word: Word) -> int:
    """Return where a word begins, its quote included."""
    return word.at[0] - (script[word.at[0] - 1 : word.at[0]] in (b'"', b"'"))


def _end(script: bytes, word: Word) -> int:
    """Return where a word ends, its quote included."""
    end = word.at[-1] + 1
    return end + (script[end : end + 1] in (b'"', b"'"))
