"""What does a dry run's Slurm say of the job, where its script asks: `scontrol show job`, `squeue`?

The same as of the job itself, in Slurm's own form (22.05): many a script finds the folder that it
lies in by `Command=`. That it was asked is left for the runner (`MARK`): such a job is not given a
changed copy of its script. Runs as a shim does, isolated and with nothing of ours but this.
"""

import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "asked-for-script"
"""The file among the traces that says so."""
FACTS = "XMEM_JOB"
"""The variable with what Slurm knows of a job and does not set in its environment, as JSON
(`job.facts`)."""
_NULL = "(null)"

_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_LETTERS = {
    "A": "JobId", "F": "JobId", "i": "JobId", "j": "JobName", "o": "Command", "Z": "WorkDir",
    "P": "Partition",
    "u": "User", "T": "JobState", "t": "ST", "M": "RunTime", "l": "TimeLimit", "L": "TimeLeft",
    "D": "NumNodes",
    "N": "NodeList", "R": "NodeList", "B": "BatchHost", "C": "NumCPUs", "a": "Account", "q": "QOS",
    "k": "Comment",
    "f": "Features", "b": "TresPerNode", "S": "StartTime", "e": "EndTime", "V": "SubmitTime",
    "K": "ArrayTaskId",
    "U": "Uid", "r": "Reason",
}  # fmt: skip
"""What squeue's letters stand for (squeue(1), --format)."""
_HEADS = {
    "i": "JOBID", "P": "PARTITION", "j": "NAME", "u": "USER", "t": "ST", "M": "TIME", "D": "NODES",
    "o": "COMMAND",
    "R": "NODELIST(REASON)", "N": "NODELIST", "T": "STATE", "L": "TIME_LEFT", "l": "TIME_LIMIT",
    "Z": "WORK_DIR",
}  # fmt: skip
_NAMES = {
    "command": "o", "jobid": "A", "jobarrayid": "i", "name": "j", "workdir": "Z", "partition": "P",
    "username": "u",
    "state": "T", "statecompact": "t", "timeused": "M", "timelimit": "l", "timeleft": "L",
    "numnodes": "D",
    "nodelist": "N", "reasonlist": "R", "batchhost": "B", "numcpus": "C", "account": "a",
    "qos": "q", "comment": "k",
}  # fmt: skip
"""Those of --Format."""
_FIELD = re.compile(r"%(\.?)(\d*)([A-Za-z])")
_WIDTH = 20


def scontrol(arguments: Sequence[str]) -> None:
    """Show the job, or expand its host list: this host for each of its nodes; no other question has
    an answer here.
    """
    words = [word for word in arguments if not word.startswith("-")]
    if words[:1] != ["show"]:
        return
    if words[1:2] == ["hostnames"]:
        nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
        print("\n".join([os.environ.get("SLURM_JOB_NODELIST", "localhost")] * nodes))  # noqa: T201
    entity, _, number = ((words[1:2] or [""])[0]).partition("=")
    if entity in ("job", "jobs", "jobid", "jobids"):
        if not _is_own(number or (words[2:3] or [""])[0]):
            sys.exit("slurm_load_jobs error: Invalid job id specified")
        one_line = any(word in ("-o", "--oneliner", "-do") for word in arguments)
        between, after = (" ", "\n") if one_line else ("\n   ", "\n\n")
        print(shown(os.environ, time.time(), between), end=after)  # noqa: T201
        _mark()


def squeue(arguments: Sequence[str]) -> None:
    """List the job, in the format that is asked for; no other one is seen from here."""
    values = dict[str, str]()
    names = {"-j": "jobs", "--job": "jobs", "-o": "format", "-O": "Format", "-h": "noheader"}
    words = [part for word in arguments for part in _apart(word)]
    for at, word in enumerate(words, 1):
        if word.startswith("-"):
            values[names.get(word, word.lstrip("-"))] = "".join(words[at : at + 1])
    facts = known(os.environ, time.time())
    form = _of_names(values["Format"]) if "Format" in values else values.get("format", _DEFAULT)
    heads = {letter: _HEADS.get(letter, name.upper()) for letter, name in _LETTERS.items()}
    rows = [] if "noheader" in values else [heads]
    if any(_is_own(number) for number in values.get("jobs", "").split(",")):
        rows.append({letter: facts.get(name, "N/A") for letter, name in _LETTERS.items()})
    for row in rows:
        print(_filled_in(form, row))  # noqa: T201
    if "%o" in re.sub(r"%\.?\d*", "%", form):
        _mark()


def shown(environ: Mapping[str, str], now: float, separator: str) -> str:
    """Return what `scontrol show job` prints; `separator` stands between its lines."""
    facts = known(environ, now)
    lines = [
        ("JobId", "JobName"),
        ("UserId", "GroupId", "MCS_label"),
        ("Priority", "Nice", "Account", "QOS"),
        ("JobState", "Reason", "Dependency"),
        ("Requeue", "Restarts", "BatchFlag", "Reboot", "ExitCode"),
        ("RunTime", "TimeLimit", "TimeMin"),
        ("SubmitTime", "EligibleTime"),
        ("AccrueTime",),
        ("StartTime", "EndTime", "Deadline"),
        ("Partition", "AllocNode:Sid"),
        ("ReqNodeList", "ExcNodeList"),
        ("NodeList",),
        ("BatchHost",),
        ("NumNodes", "NumCPUs", "NumTasks", "CPUs/Task"),
        ("Features",),
        ("Command",),
        ("WorkDir",),
        *(
            (name,)
            for name in ("Comment", "StdErr", "StdIn", "StdOut", "TresPerNode", "TresPerJob")
            if name in facts
        ),
    ]
    return separator.join(" ".join(f"{name}={facts[name]}" for name in line) for line in lines)


def known(environ: Mapping[str, str], now: float) -> dict[str, str]:
    """Return all that is said of the job, by scontrol's names and a few more."""
    uid, gid = os.getuid(), os.getgid()
    user = environ.get("SLURM_JOB_USER", str(uid))
    start = float(environ.get("SLURM_JOB_START_TIME", now))
    end = float(environ.get("SLURM_JOB_END_TIME", now))
    began, nodes = _moment(start), environ.get("SLURM_JOB_NUM_NODES", "1")
    cpus, tasks = environ.get("SLURM_CPUS_ON_NODE", "1"), environ.get("SLURM_NTASKS", "1")
    host = environ.get("SLURMD_NODENAME", "localhost")
    facts = {
        "JobId": environ.get("SLURM_JOB_ID", "1"),
        "JobName": environ.get("SLURM_JOB_NAME", ""),
        "UserId": f"{user}({uid})",
        "User": user,
        "Uid": str(uid),
        "GroupId": str(gid),
        "JobState": "RUNNING",
        "ST": "R",
        "RunTime": _span(now - start),
        "TimeLimit": _span(end - start),
        "TimeLeft": _span(end - now),
        "EndTime": _moment(end),
        "Partition": environ.get("SLURM_JOB_PARTITION", ""),
        "AllocNode:Sid": f"{environ.get('SLURM_SUBMIT_HOST', host)}:1",
        "NumNodes": nodes,
        "NumCPUs": str(int(nodes) * int(cpus)),
        "NumTasks": tasks,
        "CPUs/Task": environ.get("SLURM_CPUS_PER_TASK", "1"),
        "ArrayTaskId": environ.get("SLURM_ARRAY_TASK_ID", "N/A"),
        "WorkDir": environ.get("SLURM_SUBMIT_DIR", ""),
        "ExitCode": "0:0",
        "StdIn": "/dev/null",
    }
    facts |= dict.fromkeys(("NodeList", "BatchHost"), host)
    facts |= dict.fromkeys(("SubmitTime", "EligibleTime", "AccrueTime", "StartTime"), began)
    facts |= dict.fromkeys(("Priority", "Requeue", "BatchFlag"), "1")
    facts |= dict.fromkeys(("Nice", "Restarts", "Reboot"), "0")
    facts |= dict.fromkeys(("MCS_label", "TimeMin", "Deadline"), "N/A")
    facts |= dict.fromkeys(
        ("Account", "QOS", "Dependency", "ReqNodeList", "ExcNodeList", "Features", "Command"), _NULL
    )
    from_submission: dict[str, str] = json.loads(environ.get(FACTS, "{}"))
    return facts | {"Reason": "None"} | from_submission


def _is_own(number: str) -> bool:
    """Whether a job is meant by this number: it, a task of its array, a component; or no one in
    particular.
    """
    return re.split(r"[_+.]", number)[0] in (
        "",
        os.environ.get("SLURM_JOB_ID"),
        os.environ.get("SLURM_ARRAY_JOB_ID"),
    )


def _mark() -> None:
    (Path(os.environ["XMEM_TRACE_DIR"]) / MARK).touch()


def _apart(word: str) -> list[str]:
    """Take `--format=%o`, `-ho` and `-j5` apart."""
    if word.startswith("--"):
        return list(filter(None, word.partition("=")[::2]))
    if not word.startswith("-"):
        return [word]
    flags = re.match(r"-([ahlrsv]*)(\w?)(.*)", word, re.DOTALL)
    assert flags is not None
    return [*(f"-{letter}" for letter in flags[1] + flags[2]), *filter(None, [flags[3]])]


def _of_names(text: str) -> str:
    """Return the letters that --Format's names stand for, each as wide as is asked for."""
    fields = []
    for field in text.split(","):
        name, _, size = field.partition(":")
        fields.append(f"%{size or _WIDTH}{_NAMES.get(name.lower(), 'X')}")
    return "".join(fields)


def _filled_in(form: str, row: Mapping[str, str]) -> str:
    def padded(field: re.Match[str]) -> str:
        text, width = row.get(field[3], "N/A"), int(field[2] or 0)
        if not width:
            return text
        return text[:width].rjust(width) if field[1] else text[:width].ljust(width)

    return _FIELD.sub(padded, form)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def _span(seconds: float) -> str:
    """Write a time as scontrol does: `1-00:00:00`, `00:05:00`."""
    minutes, remainder = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return (f"{days}-" if days else "") + f"{hours:02}:{minutes:02}:{remainder:02}"
