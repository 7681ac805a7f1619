"""What does the body of a shell script run, and which of its job steps ask for GPUs themselves?

Slurm refuses a step that asks for another type of GPU than its job has, or for a type where its job
has none: whoever changes the type must know of such steps, and changes them here. Scripts are read
by the grammar of tree-sitter-bash, so that pipes, loops, functions, substitutions and
here-documents are what they are to a shell.

A step can be changed where its value stands in the script as plain text. What else looks like a
step is given without a place, and is in the way of a change: a value or options from a variable,
text for eval, `sh -c` or a here-document, and each mention of one in a script that the grammar
cannot read, such as a Python script. Options from a variable that the script itself does not set
are not seen.

The parser is imported where a script is read: most submissions need none.
"""

import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from xmem_slurm.slurm import gres
from xmem_slurm.slurm.options import Occurrence, Table, scan, srun_table
from xmem_slurm.slurm.request import GPU_OPTIONS

if TYPE_CHECKING:
    from tree_sitter import Node

SHELLS = ("sh", "bash", "dash", "ksh", "zsh")
"""Interpreters whose scripts the grammar is for."""

MOST_BYTES = 1 << 17
"""A longer script is not parsed: its tree has a node for every few bytes..."""
MOST_SECONDS = 2.0
"""...nor is one that takes longer: thousands of here-documents that never end do."""

_OPTION = rb"(?:--gres\b(?!-)|--gpus\b(?!-[bf])|--tres-p|(?<=\s)-\w*G)"
_ASKING = re.compile(_OPTION)
_QUOTES = re.compile(rb"^|[\"'()]")
_MENTION = re.compile(
    rb"(?<![\w.-])srun(?![\w.-])(?=((?:[^\n\\]|\\.){0,2000}?" + _OPTION + rb"[^\s\"',;)]*))",
    re.DOTALL,
)
_COMMENT_LINE = re.compile(rb"^[ \t]*#.*", re.MULTILINE)
_PLAIN = re.compile(r"[\w.:,=/()-]+", re.ASCII)
_VARIABLE = re.compile(rb"\$\{?([A-Za-z_]\w*|[@*1-9])")
_POSITIONAL = b"@*123456789"
_HET_GROUPS = ("het-group", "pack-group")

_NO_WORDS = (
    "file_redirect",
    "heredoc_redirect",
    "herestring_redirect",
    "variable_assignment",
    "do_group",
)
_LISTS = ("for_statement", "array", "unary_expression", "binary_expression")
"""Nodes of the grammar that hold words and are no commands."""
_GIVING = ("variable_assignment", "declaration_command", "for_statement", "unset_command")
"""Nodes in which a variable's name is not read."""


class Word(NamedTuple):
    """One word, quotes and backslashes resolved, expansions as written; `at` has the offset of each
    of its bytes.
    """

    raw: bytes
    at: tuple[int, ...]


class Step(NamedTuple):
    """One option with which a job step asks for GPUs.

    `line` counts from 1; `text` is for people. `components` are those of a heterogeneous job that
    are asked. The value is `data[start:end]`; `start` is None where it cannot be changed for sure.
    """

    line: int
    text: str
    option: str = ""
    value: str = ""
    components: tuple[int, ...] = (0,)
    start: int | None = None
    end: int = 0
    file: str = "the script"

    def with_type(self, gpu_type: str) -> str:
        """Return the value with this type of GPU, its count as it is."""
        return gres.with_type(self.option, self.value, gpu_type)

    def can_have(self, types: Sequence[str | None]) -> bool:
        """Whether it can be given the type of its component; `types` has one for each, None to
        leave it as it is.
        """
        wanted = {types[index] if index < len(types) else "" for index in self.components}
        return wanted == {None} or (
            self.start is not None and len(wanted) == 1 and "" not in wanted
        )


def gpu_steps(data: bytes, *, is_shell: bool = True) -> tuple[Step, ...]:
    """Return what asks for GPUs by itself in a script, in order."""
    if b"srun" not in data:
        return ()
    root = _parse(data) if is_shell else None
    if root is None:
        return _mention(data, set(), [match.span() for match in _COMMENT_LINE.finditer(data)])
    nodes, table = list(_preorder(root)), srun_table()
    may_ask = cache(partial(_may_ask, values=_values(data, nodes)))
    steps, positions = list[Step](), set[int]()
    for node in nodes:
        words = _words(data, node) if node.type == "command" else []
        at = next(
            (at for at, word in enumerate(words) if word.raw.rpartition(b"/")[2] == b"srun"), None
        )
        if at is not None:
            positions.add(words[at].at[-4])
            steps += _steps(node.start_point.row + 1, words[at + 1 :], table, may_ask)
    comments = [(node.start_byte, node.end_byte) for node in nodes if node.type == "comment"]
    return tuple(
        sorted(
            [*steps, *_mention(data, positions, comments)],
            key=lambda step: (step.line, step.start or 0),
        )
    )


def with_types(data: bytes, steps: Sequence[Step], types: Sequence[str | None]) -> bytes:
    """Return the script whose `steps`, all of which `can_have` them, ask for the types of their
    components.
    """
    changes = [(step.start or 0, step.end, step, types[step.components[0]]) for step in steps]
    pieces, at = list[bytes](), 0
    for start, end, step, gpu_type in sorted(changes):
        if gpu_type is not None:
            pieces += [data[at:start], step.with_type(gpu_type).encode()]
            at = end
    return b"".join([*pieces, data[at:]])


def commands(data: bytes) -> list[list[str]] | None:
    """Return the commands of a shell script as words, in order; None where the script cannot be
    read.

    Beside commands: each assignment as one word `NAME=value`; words that stand in loops, arrays,
    tests and behind "<" as arguments of a command ""; and what output goes to as that of a command
    ">".
    """
    root = _parse(data)
    if root is None:
        return None
    lists: list[list[str]] = []
    for node in _preorder(root):
        if node.type == "command":
            lists.append([_text(word) for word in _words(data, node)])
        elif node.type == "variable_assignment":
            lists.append([_text(_word(data, node.start_byte, node.end_byte))])
        elif node.type == "file_redirect":
            reads = any(child.type == "<" for child in node.children)
            words = _runs(data, node.named_children)
            lists.append(["" if reads else ">", *map(_text, words if reads else words[:1])])
        elif node.type in _LISTS:
            lists.append(["", *map(_text, _runs(data, node.named_children))])
    return lists


def commands_at(data: bytes) -> list[list[Word]]:
    """Return the words of each command of a shell script, without assignments before it; none of
    what is no shell's.
    """
    root = _parse(data)
    if root is None:
        return []
    word_lists = (_words(data, node) for node in _preorder(root) if node.type == "command")
    return [words for words in word_lists if words and all(word.at for word in words)]


class Assigned(NamedTuple):
    """What a script gives a variable: the value is `data[start:end]`."""

    name: str
    start: int
    end: int


def assignments(data: bytes) -> list[Assigned]:
    """Return what a shell script assigns to its variables, in order; none of what is no shell's.

    An assignment before a command is none: what that command's own words name is filled in without
    it.
    """
    root, assigned = _parse(data), list[Assigned]()
    for node in [] if root is None else _preorder(root):
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if (
            node.type == "variable_assignment"
            and name
            and value
            and not _is_before_command(data, node)
        ):
            assigned.append(Assigned(_named(data, name), value.start_byte, value.end_byte))
    return assigned


def _is_before_command(data: bytes, assignment: "Node") -> bool:
    """Whether an assignment is for the command behind it; the grammar takes those of the line above
    for such, too.
    """
    at = assignment
    while at.parent is not None and at.parent.type == "command" and at.next_sibling is not None:
        if b"\n" in data[at.end_byte : at.next_sibling.start_byte].replace(b"\\\n", b""):
            return False
        at = at.next_sibling
        if at.type != "variable_assignment":
            return True
    return False


def read_variables(data: bytes) -> set[str]:
    """Return the variables that a shell script itself reads, which is before any command does."""
    root = _parse(data)
    named = (
        [] if root is None else [node for node in _preorder(root) if node.type == "variable_name"]
    )
    return {
        _named(data, node)
        for node in named
        if node.parent is None or node.parent.type not in _GIVING
    }


def filled_in(data: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """Return where what a shell makes of `data[start:end]` stands: there, and in values of
    variables named there.
    """
    spans, names, assigned = [(start, end)], set[bytes](), assignments(data)
    for begin, stop in spans:
        new = set(_VARIABLE.findall(data, begin, stop)) - names
        names |= new
        spans += [
            (assignment.start, assignment.end)
            for assignment in assigned
            if assignment.name.encode(errors="surrogateescape") in new
        ]
    return spans


def _named(data: bytes, node: "Node") -> str:
    return data[node.start_byte : node.end_byte].decode(errors="surrogateescape")


def _text(word: Word) -> str:
    return word.raw.decode(errors="surrogateescape")


def _parse(data: bytes) -> "Node | None":
    """Return the root of the script's syntax tree, or None if the grammar does not take it, or not
    in time.
    """
    if len(data) > MOST_BYTES:
        return None
    import tree_sitter_bash  # noqa: PLC0415
    from tree_sitter import Language, Parser  # noqa: PLC0415

    end = time.monotonic() + MOST_SECONDS

    def read(offset: int, _point: object) -> bytes:
        return data[offset : offset + 4096] if time.monotonic() < end else b""

    root = Parser(Language(tree_sitter_bash.language())).parse(read).root_node
    return None if root.has_error or time.monotonic() >= end else root


def _preorder(root: "Node") -> "Iterator[Node]":
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(node.children))


def _words(data: bytes, command: "Node") -> list[Word]:
    """Return the words of a command, those behind its redirections among them: `srun >out -G1
    x`.
    """
    around = command.parent
    redirected = (
        around.children if around is not None and around.type == "redirected_statement" else []
    )
    words = _runs(data, command.children)
    for node in redirected:
        if node.type == "file_redirect":
            words += _runs(data, node.named_children)[1:]
        elif node.type == "heredoc_redirect":
            words += _runs(data, node.children_by_field_name("argument"))
    return sorted(words, key=lambda word: word.at)


def _runs(data: bytes, nodes: "Sequence[Node]") -> list[Word]:
    """Make one word of nodes that touch."""
    spans: list[list[int]] = []
    for node in nodes:
        if node.type in _NO_WORDS or node.type == "file_descriptor":
            continue
        if spans and spans[-1][1] == node.start_byte:
            spans[-1][1] = node.end_byte
        else:
            spans.append([node.start_byte, node.end_byte])
    return [_word(data, start, end) for start, end in spans]


def _word(data: bytes, start: int, end: int) -> Word:
    """Resolve quotes and backslashes as a shell does."""
    at: list[int] = []
    quote, escaped = 0, False
    for index in range(start, end):
        byte = data[index]
        if escaped:
            escaped = False
            if byte == ord("\n"):
                continue
        elif byte == ord("\\") and quote != ord("'"):
            escaped = True
            continue
        elif quote and byte == quote:
            quote = 0
            continue
        elif not quote and byte in b"\"'":
            quote = byte
            continue
        at.append(index)
    return Word(bytes(data[index] for index in at), tuple(at))


def _values(data: bytes, nodes: "Sequence[Node]") -> Mapping[bytes, bytes]:
    """Return all that the script assigns to each variable; what it calls its functions with, as the
    positional ones.
    """
    assigned: dict[bytes, list[bytes]] = {}
    for node in nodes:
        if node.type == "variable_assignment":
            name, _, value = data[node.start_byte : node.end_byte].partition(b"=")
            assigned.setdefault(name.partition(b"[")[0].rstrip(b"+"), []).append(value)
        elif node.type == "command" and data.find(b"srun", node.start_byte, node.end_byte) < 0:
            assigned.setdefault(b"@", []).append(data[node.start_byte : node.end_byte])
    values = {name: b" ".join(texts) for name, texts in assigned.items()}
    return values | dict.fromkeys((bytes([byte]) for byte in _POSITIONAL), values.get(b"@", b""))


def _may_ask(word: bytes, values: Mapping[bytes, bytes]) -> bool:
    """Whether a word may bring a GPU option along, by the variables in it and those in their
    values.
    """
    names: set[bytes] = set()
    texts = [word]
    while texts:
        text = texts.pop()
        if text is not word and _ASKING.search(_QUOTES.sub(b" ", text)):
            return True
        new = set(_VARIABLE.findall(text)) - names
        names |= new
        texts += [values[name] for name in new if name in values]
    return False


def _steps(
    line: int, words: Sequence[Word], table: Table, may_ask: Callable[[bytes], bool]
) -> Iterator[Step]:
    """Yield the steps of one srun, whose ":" divides the components of a heterogeneous job."""
    begin = 0
    for piece, end in enumerate(
        [*(at for at, word in enumerate(words) if word.raw == b":"), len(words)]
    ):
        part = words[begin:end]
        texts = [word.raw.decode("latin-1") for word in part]
        options, variables = _options(texts, table)
        components = _components(options, piece)
        for at in variables:
            if may_ask(part[at].raw):
                yield Step(line, f"srun {texts[at]}")
        for occurrence in options:
            if _asks(occurrence):
                sure = components is not None and all(occurrence.at < at for at in variables)
                step = _step(line, part[occurrence.value_at], occurrence)
                yield step._replace(
                    components=components or (0,), start=step.start if sure else None
                )
        begin = end + 1


def _options(words: Sequence[str], table: Table) -> tuple[list[Occurrence], list[int]]:
    """Return srun's own options, and where a variable stands that may be more of them, or the
    program.

    What follows it may then be srun's or the program's.
    """
    occurrences: list[Occurrence] = []
    variables: list[int] = []
    begin = 0
    while True:
        options, stop = scan(words[begin:], table)
        occurrences += [o._replace(at=o.at + begin, value_at=o.value_at + begin) for o in options]
        begin += stop
        if begin >= len(words) or not words[begin].startswith("$"):
            return occurrences, variables
        variables.append(begin)
        begin += 1


def _components(options: Sequence[Occurrence], piece: int) -> tuple[int, ...] | None:
    """Return the components of a heterogeneous job that `--het-group` names, else the one whose
    turn it is.
    """
    text = next(
        (o.value for o in reversed(options) if o.name in _HET_GROUPS and o.value), str(piece)
    )
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or not (last if dash else first).isdecimal() or len(part) > 7:
            return None
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers) or None


def _asks(occurrence: Occurrence) -> bool:
    """Whether an option is for GPUs; a `--gres` of something else is not, one with a variable in it
    may be.
    """
    if occurrence.name not in GPU_OPTIONS or not occurrence.value:
        return False
    if "$" in occurrence.value or "`" in occurrence.value:
        return True
    try:
        return any(
            entry.is_gpu and entry.amount
            for entry in gres.parse_option(occurrence.name, occurrence.value)
        )
    except gres.GresError:
        return occurrence.name in gres.GPUS_FAMILY or "gpu" in occurrence.value


def _step(line: int, word: Word, occurrence: Occurrence) -> Step:
    """Return the step, with the place of its value if that is plain text and has one type of
    GPU.
    """
    value, at = occurrence.value or "", word.at[occurrence.value_start :]
    step = Step(line, f"srun --{occurrence.name}={value}", occurrence.name, value)
    try:
        step.with_type("type")
    except gres.GresError:
        return step
    together = at[-1] - at[0] == len(at) - 1
    return (
        step._replace(start=at[0], end=at[-1] + 1) if together and _PLAIN.fullmatch(value) else step
    )


def _mention(
    data: bytes, positions: set[int], comments: Sequence[tuple[int, int]]
) -> tuple[Step, ...]:
    """Return the first that looks like a step and is neither at one of these positions, where one
    is known, nor in a comment, if any.
    """
    starts = [start for start, _ in comments]
    for match in _MENTION.finditer(data):
        before = bisect_right(starts, match.start()) - 1
        commented = before >= 0 and match.start() < comments[before][1]
        if match.start() not in positions and not commented:
            words = (match[0] + match[1]).decode(errors="replace").split()
            text = " ".join(words if len(words) < 3 else [words[0], "...", words[-1]])
            return (Step(data.count(b"\n", 0, match.start()) + 1, text),)
    return ()
