"""Which options does a batch script hold, and how is one of them changed without touching another
byte?

The rules are sbatch's (src/sbatch/opt.c, `_opt_batch_script` and `get_argument`, 22.05 to 25.11),
not the shell's:

- A line counts if it begins with `#SBATCH` (or `#SLURM`) in its first column. Reading stops at the
  first line that is neither empty nor a comment.
- A line is split at white space. '…' and "…" group, a backslash keeps the next character, "#"
  starts a comment anywhere outside quotes. An empty word ends the line.
- The words of all lines together go through getopt: an option may stand on one line and its value
  on the next.
- `hetjob` or `packjob` as the first word starts the next component of a heterogeneous job; wherever
  it stands, the rest of its line is not read.

Known limitation: a backslash before a space outside quotes joins two words since 24.05, and is
refused before; we take it as the newer releases do.
"""

from typing import NamedTuple

from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.options import SBATCH, Occurrence, Option, Table, scan

_SPACE = b" \t\n\v\f\r"
_MAGIC = (b"#SBATCH", b"#SLURM")
_OWN = b"#XMEM"
_FOREIGN = (b"#BSUB", b"#PBS")
# lines that are no comment before sbatch stops looking for #BSUB and #PBS (src/sbatch/xlate.c)
_FOREIGN_LIMIT = 100


class ScriptError(UsageError):
    """sbatch itself refuses the script's #SBATCH lines, or an option on them cannot be changed;
    says where and why.
    """


class ScriptWord(NamedTuple):
    """One word of an #SBATCH line.

    `text` is what sbatch reads, quotes and backslashes resolved; `data[start:end]` is how it is
    written. For each byte of `text`, `ends` has the offset in `data` just after it and `quotes` the
    quote that is open there (0 for none).
    """

    text: str
    line: int
    start: int
    end: int
    ends: tuple[int, ...]
    quotes: tuple[int, ...]


class Directive(NamedTuple):
    """One option in a script: `occurrence` counts in `Component.words`; `line` (from 1) is where
    the option stands.
    """

    component: int
    line: int
    occurrence: Occurrence


class Component(NamedTuple):
    """The options of one component. `insert_at` is the offset at which a line can be added for
    it.
    """

    words: tuple[ScriptWord, ...]
    directives: tuple[Directive, ...]
    has_lines: bool
    insert_at: int
    stray: ScriptWord | None
    """A word that belongs to no option; sbatch refuses the script because of it."""


class OwnLine(NamedTuple):
    """An `#XMEM` line: what it says, and `data[start:end]`, its line break included."""

    words: tuple[str, ...]
    line: int
    start: int
    end: int


class Script(NamedTuple):
    """A batch script and its options. Make one with `parse`."""

    data: bytes
    components: tuple[Component, ...]
    own_lines: tuple[OwnLine, ...]
    plugins: tuple[Option, ...]
    """Options to know beside sbatch's own."""
    foreign: str | None
    """`PBS` or `BSUB` if the script has lines of that kind, which sbatch translates; else None."""

    @property
    def directives(self) -> tuple[Directive, ...]:
        """The options of all components, in order."""
        return tuple(
            directive for component in self.components for directive in component.directives
        )

    @property
    def unknown(self) -> tuple[str, ...]:
        """Options that are not in the table and have no `=value`: the word after one may be its
        value.
        """
        occurrences = (directive.occurrence for directive in self.directives)
        return tuple(o.typed for o in occurrences if o.option is None and o.value is None)

    @property
    def interpreter(self) -> str:
        """The base name of the program on the `#!` line (env looked through), or ""."""
        if not self.data.startswith(b"#!"):
            return ""
        words = self.data[2 : _line_end(self.data, 0)].decode(errors="surrogateescape").split()
        if words and words[0].rpartition("/")[2] == "env":
            words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return words[0].rpartition("/")[2] if words else ""

    @property
    def refusal(self) -> str | None:
        """Why sbatch refuses the script whatever its options are (src/sbatch/sbatch.c,
        _get_script_buffer), or None.
        """
        if not self.data.strip(_SPACE):
            return "the script is empty"
        if not self.data.startswith(b"#!"):
            return "the script does not begin with #!"
        if b"\0" in self.data:
            return "the script holds a NUL character"
        if b"\r\n" in self.data:
            return (
                r"the script has DOS line breaks (\r\n); "
                r"dos2unix, or sed -i 's/\r$//', takes them out"
            )
        return None


def parse(data: bytes, plugins: tuple[Option, ...] = ()) -> Script:
    """Read a script's options; `plugins` are those of a site's SPANK plugins, to know beside
    sbatch's own.

    Raises:
        ScriptError: a quote is not closed, or a word begins with ":": sbatch ends with an error
            there, too.
    """
    # per component: number, start of the words, end of the line
    lines: list[list[tuple[int, int, int]]] = [[]]
    own_lines: list[OwnLine] = []
    number = start = 0
    while start < len(data):
        number += 1
        end = _line_end(data, start)
        magic = next((word for word in _MAGIC if data.startswith(word, start, end)), None)
        if magic is not None:
            after = start + len(magic)
            if _is_separator(data, _skip_space(data, after, end), end):
                lines.append([])
            lines[-1].append((number, after, end))
        else:
            first = _skip_space(data, start, end)
            if first < end and data[first] != ord("#"):
                break
            if data.startswith(_OWN, start, end):
                text = data[start + len(_OWN) : end].decode(errors="surrogateescape")
                own_lines.append(
                    OwnLine(tuple(text.split()), number, start, min(end + 1, len(data)))
                )
        start = end + 1
    after_shebang = min(_line_end(data, 0) + 1, len(data)) if data.startswith(b"#!") else 0
    table = SBATCH.with_options(plugins) if plugins else SBATCH
    components = tuple(
        _component(data, index, part, after_shebang, table) for index, part in enumerate(lines)
    )
    return Script(data, components, tuple(own_lines), plugins, _foreign(data))


def with_value(script: Script, directive: Directive, value: str) -> Script:
    """Return the script with another value for one option, in the quotes that the old value has.

    Raises:
        ScriptError: the option has no value there, or the value cannot be written on an #SBATCH
            line.
    """
    occurrence = directive.occurrence
    words = script.components[directive.component].words
    if occurrence.value is None:
        raise ScriptError(
            f"line {directive.line}: {occurrence.typed} has no value that could be changed"
        )
    if not value:
        raise ScriptError(
            f"line {directive.line}: {occurrence.typed} cannot be given an empty value"
        )
    word = words[occurrence.value_at]
    begin, quote = _raw_position(word, occurrence.value_start)
    old = script.data[begin : word.end]
    if quote:
        new = _escape(value, quote) + bytes([quote])
    elif len(old) > 1 and old[0] in b"\"'" and old[-1] == old[0]:
        new = bytes([old[0]]) + _escape(value, old[0]) + bytes([old[0]])
    else:
        new = quoted(value)
    return parse(script.data[:begin] + new + script.data[word.end :], script.plugins)


def with_option(script: Script, component: int, name: str, value: str | None) -> Script:
    """Return the script with one more line, `#SBATCH --name=value`, after the last one of that
    component.

    Raises:
        ScriptError: the script has no such component, or the value cannot be written on an #SBATCH
            line.
    """
    if component >= len(script.components):
        raise ScriptError(f"the script has no component {component}")
    line = b"#SBATCH --" + name.encode() + (b"" if value is None else b"=" + quoted(value))
    at = script.components[component].insert_at
    head, tail = script.data[:at], script.data[at:]
    if head and not head.endswith(b"\n"):
        return parse(head + b"\n" + line, script.plugins)
    return parse(head + line + b"\n" + tail, script.plugins)


def without(script: Script, directive: Directive) -> Script:
    """Return the script without one option; without its line, too, if nothing else is on it.

    Raises:
        ScriptError: the option's value stands on another line.
    """
    occurrence = directive.occurrence
    words = script.components[directive.component].words
    first = words[occurrence.at]
    last = first if occurrence.value is None else words[occurrence.value_at]
    if last.line != first.line:
        raise ScriptError(
            f"line {first.line}: the value of {occurrence.typed} stands on line {last.line}"
        )
    whole_word = occurrence.start <= 1 and (
        last is not first or len(first.text) <= 2 or first.text.startswith("--")
    )
    if occurrence.value is not None and occurrence.start == 1:
        whole_word = True
    if whole_word:
        begin, end = first.start, last.end
        mine = {first, last}
        if all(word in mine for word in words if word.line == first.line):
            begin = script.data.rfind(b"\n", 0, begin) + 1
            end = min(_line_end(script.data, end) + 1, len(script.data))
        else:
            while script.data[begin - 1] in b" \t":
                begin -= 1
    else:  # one letter of several: -HO, -HCfoo
        begin, _ = _raw_position(first, occurrence.start)
        end = last.end
        if occurrence.value is None:
            end, _ = _raw_position(first, occurrence.start + 1)
    return parse(script.data[:begin] + script.data[end:], script.plugins)


def without_own_lines(script: Script) -> Script:
    """Return the script without its `#XMEM` lines."""
    if not script.own_lines:
        return script
    data = script.data
    for line in reversed(script.own_lines):
        data = data[: line.start] + data[line.end :]
    return parse(data, script.plugins)


def quoted(value: str) -> bytes:
    """Write a value so that sbatch reads it back as it is.

    Raises:
        ScriptError: the value has a line break, which nothing can keep on one line.
    """
    raw = value.encode(errors="surrogateescape")
    special = raw[:1] in {b"", b":"} or _is_separator(raw, 0, len(raw))
    if not special and not any(byte in _SPACE + b"#\"'\\" for byte in raw):
        return raw
    return b'"' + _escape(value, ord('"')) + b'"'


def _escape(value: str, quote: int) -> bytes:
    if "\n" in value or "\0" in value:
        raise ScriptError(f"{value!r} cannot be written on an #SBATCH line")
    raw = value.encode(errors="surrogateescape").replace(b"\\", b"\\\\")
    return raw.replace(bytes([quote]), b"\\" + bytes([quote]))


def _component(
    data: bytes, index: int, lines: list[tuple[int, int, int]], after_shebang: int, table: Table
) -> Component:
    words = tuple(word for number, start, end in lines for word in _split(data, number, start, end))
    texts = [word.text for word in words]
    occurrences, stop = scan(texts, table)
    return Component(
        words=words,
        directives=tuple(Directive(index, words[o.at].line, o) for o in occurrences),
        has_lines=bool(lines),
        insert_at=min(lines[-1][2] + 1, len(data)) if lines else after_shebang,
        stray=words[stop] if stop < len(words) else None,
    )


def _split(data: bytes, number: int, start: int, end: int) -> list[ScriptWord]:
    """Split one line into words, as get_argument does."""
    words: list[ScriptWord] = []
    while True:
        start = _skip_space(data, start, end)
        if start >= end or _is_separator(data, start, end):
            return words
        if data[start] == ord(":"):
            raise ScriptError(f"line {number}: a word begins with ':', which sbatch refuses")
        word = _word(data, number, start, end)
        if not word.text:
            return words
        words.append(word)
        start = word.end


def _word(data: bytes, number: int, start: int, end: int) -> ScriptWord:
    """Read one word of an #SBATCH line as Slurm does, with where each character ended and in which
    quotes it stood.
    """
    text = bytearray()
    ends: list[int] = []
    quotes: list[int] = []
    quote = 0
    escaped = False
    at = start
    while at < end and (quote or data[at] not in _SPACE or (escaped and data[at] == ord(" "))):
        byte = data[at]
        at += 1
        if escaped:
            escaped = False
        elif byte == ord("\\"):
            escaped = True
            continue
        elif quote:
            if byte == quote:
                quote = 0
                continue
        elif byte in b"\"'":
            quote = byte
            continue
        elif byte == ord("#"):
            at -= 1
            break
        text.append(byte)
        ends.append(at)
        quotes.append(quote)
    if quote:
        raise ScriptError(f"line {number}: the quote {chr(quote)} is not closed")
    return ScriptWord(
        text.decode(errors="surrogateescape"), number, start, at, tuple(ends), tuple(quotes)
    )


def _raw_position(word: ScriptWord, character: int) -> tuple[int, int]:
    """Return the offset in the script at which a character of the word begins, and the quote that
    is open there.
    """
    before = len(word.text[:character].encode(errors="surrogateescape"))
    return (word.ends[before - 1], word.quotes[before - 1]) if before else (word.start, 0)


def _foreign(data: bytes) -> str | None:
    for magic in _FOREIGN:
        start = other_lines = 0
        if magic not in data:
            continue
        while start < len(data) and other_lines <= _FOREIGN_LIMIT:
            if data.startswith(magic, start):
                return magic[1:].decode()
            other_lines += not data.startswith(b"#", start)
            start = _line_end(data, start) + 1
    return None


def _line_end(data: bytes, start: int) -> int:
    end = data.find(b"\n", start)
    return len(data) if end < 0 else end


def _skip_space(data: bytes, start: int, end: int) -> int:
    while start < end and data[start] in _SPACE:
        start += 1
    return start


def _is_separator(data: bytes, start: int, end: int) -> bool:
    for word in (b"packjob", b"hetjob"):
        after = start + len(word)
        if (
            data[start:after].lower() == word
            and after <= end
            and (after == end or data[after] in _SPACE)
        ):
            return True
    return False
