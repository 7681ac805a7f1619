"""Reading and editing #SBATCH lines."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from xmem_slurm.slurm import script as scripts
from xmem_slurm.slurm.script import ScriptError, parse

HEAD = b"#!/bin/bash\n"


def options(data: bytes, component: int = 0) -> list[tuple[str, str | None]]:
    return [
        (d.occurrence.name, d.occurrence.value)
        for d in parse(data).components[component].directives
    ]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (b"#SBATCH --gres=gpu:1\ntrue\n", [("gres", "gpu:1")]),
        (b"\n# note\n\n   \n#SBATCH --mem=1\n", [("mem", "1")]),
        (b"echo hi\n#SBATCH --mem=1\n", []),
        (b"X=1\n#SBATCH --mem=1\n", []),
        (b"##SBATCH --mem=1\n# SBATCH --mem=1\n#sbatch --mem=1\n  #SBATCH --mem=1\n", []),
        (b"#SLURM --mem=1\n", [("mem", "1")]),
        (b"#SBATCH\t--gres\tgpu:1\n", [("gres", "gpu:1")]),
        (b"#SBATCH--gres=gpu:1\n", [("gres", "gpu:1")]),
        (b"#SBATCH --mem=1 # note --time=3\n", [("mem", "1")]),
        (b"#SBATCH --mem=1#c\n", [("mem", "1")]),
        (
            b"#SBATCH --mem=1 -Cfoo -J two\n",
            [("mem", "1"), ("constraint", "foo"), ("job-name", "two")],
        ),
        (
            b"#SBATCH --job-name=\"my job\" --comment='a #b'\n",
            [("job-name", "my job"), ("comment", "a #b")],
        ),
        (b'#SBATCH --comment=a"b c"d\n', [("comment", "ab cd")]),
        (b'#SBATCH --comment="a\\"b" -J a\\#b\n', [("comment", 'a"b'), ("job-name", "a#b")]),
        (b"#SBATCH --comment=x\\ y\n", [("comment", "x y")]),
        (b"#SBATCH --gres=gpu:1 \\\n#SBATCH --mem=9G\n", [("gres", "gpu:1"), ("mem", "9G")]),
        (b"#SBATCH --gres\n#SBATCH gpu:1\n", [("gres", "gpu:1")]),
        (b'#SBATCH --mem=1 "" --time=3\n', [("mem", "1")]),
        (b"#SBATCH --mem=1 hetjob --time=3\n", [("mem", "1")]),
        (b"#SBATCH -J\xc3\xa9\xff\n", [("job-name", "\u00e9\udcff")]),
        (b"#SBATCH --gres=gpu:1", [("gres", "gpu:1")]),
    ],
)
def test_reads_what_sbatch_reads(lines: bytes, expected: list[tuple[str, str | None]]) -> None:
    assert options(HEAD + lines) == expected


def test_a_word_that_is_no_option_stops_the_reading() -> None:
    script = parse(HEAD + b"#SBATCH --gres=gpu:1 junk --mem=2G\n")
    (component,) = script.components
    assert component.stray is not None
    assert component.stray.text == "junk"
    assert [d.occurrence.name for d in component.directives] == ["gres"]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [(b'#SBATCH --comment="abc\n', "line 2: the quote"), (b"#SBATCH : -N1\n", "line 2: a word")],
)
def test_what_sbatch_refuses_is_refused(lines: bytes, reason: str) -> None:
    with pytest.raises(ScriptError, match=reason):
        parse(HEAD + lines)


@pytest.mark.parametrize("separator", [b"hetjob", b"packjob", b"HETJOB", b"hetjob --gres=lost"])
def test_components(separator: bytes) -> None:
    data = (
        HEAD + b"#SBATCH --mem=1\n#SBATCH " + separator + b"\n#SBATCH --mem=2\n#SBATCH -N3\ntrue\n"
    )
    assert options(data, 0) == [("mem", "1")]
    assert options(data, 1) == [("mem", "2"), ("nodes", "3")]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (b"#PBS -N x\n", "PBS"),
        (b"true\n#BSUB -J x\n", "BSUB"),
        (b"true\n" * 101 + b"#PBS -N x\n", None),
        (b"#SBATCH -N1\n #PBS\n", None),
    ],
)
def test_lines_for_other_schedulers_are_noticed(lines: bytes, kind: str | None) -> None:
    assert parse(HEAD + lines).foreign == kind


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"#!/bin/bash -l", "bash"),
        (b"#! /usr/bin/python3.12", "python3.12"),
        (b"#!/usr/bin/env -S FOO=1 python3 -u", "python3"),
        (b"#!", ""),
        (b"true", ""),
    ],
)
def test_interpreter(line: bytes, name: str) -> None:
    assert parse(line + b"\nx\n").interpreter == name


@pytest.mark.parametrize(
    "data", [b"", b" \n", b"true\n", HEAD + b"\0", HEAD.replace(b"\n", b"\r\n")]
)
def test_scripts_that_sbatch_refuses_whole(data: bytes) -> None:
    assert parse(data).refusal is not None


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        (b"#SBATCH --gres=gpu:1 -N2 # x", b"#SBATCH --gres=NEW -N2 # x"),
        (b"#SBATCH --gres gpu:1 -N2", b"#SBATCH --gres NEW -N2"),
        (b'#SBATCH --gres="gpu:1"', b'#SBATCH --gres="NEW"'),
        (b"#SBATCH --gres='gpu:1'#c", b"#SBATCH --gres='NEW'#c"),
        (b'#SBATCH "--gres=gpu:1" -N2', b'#SBATCH "--gres=NEW" -N2'),
        (b'#SBATCH --gres=gp"u:"1', b"#SBATCH --gres=NEW"),
        (b"#SBATCH --gres\n#SBATCH gpu:1 # v", b"#SBATCH --gres\n#SBATCH NEW # v"),
        (b"#SBATCH --gres=", b"#SBATCH --gres=NEW"),
    ],
)
def test_a_value_is_changed_in_its_own_spelling(line: bytes, changed: bytes) -> None:
    script = parse(HEAD + b"#SBATCH -J\xff\n" + line + b"\ntrue\n")
    gres = next(d for d in script.directives if d.occurrence.name == "gres")
    assert (
        scripts.with_value(script, gres, "NEW").data
        == HEAD + b"#SBATCH -J\xff\n" + changed + b"\ntrue\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HEAD + b"true\n", HEAD + b"#SBATCH --mem=1\ntrue\n"),
        (
            HEAD + b"# a\n#SBATCH -N1\n# b\ntrue\n",
            HEAD + b"# a\n#SBATCH -N1\n#SBATCH --mem=1\n# b\ntrue\n",
        ),
        (HEAD + b"#SBATCH -N1", HEAD + b"#SBATCH -N1\n#SBATCH --mem=1"),
        (HEAD[:-1], HEAD + b"#SBATCH --mem=1"),
        (
            HEAD + b"#SBATCH hetjob\n#SBATCH -N1\n",
            HEAD + b"#SBATCH --mem=1\n#SBATCH hetjob\n#SBATCH -N1\n",
        ),
    ],
)
def test_a_line_is_added_where_sbatch_reads_it(before: bytes, after: bytes) -> None:
    assert scripts.with_option(parse(before), 0, "mem", "1").data == after


def test_a_line_is_added_to_its_component() -> None:
    data = HEAD + b"#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\ntrue\n"
    changed = scripts.with_option(parse(data), 1, "mem", "1").data
    assert changed == HEAD + b"#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N2\n#SBATCH --mem=1\ntrue\n"


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (b"#SBATCH --gres=gpu:1 # x\n", b""),
        (b"#SBATCH --gres gpu:1\n", b""),
        (b"#SBATCH --gres=gpu:1 -N2\n", b"#SBATCH -N2\n"),
        (b"#SBATCH -N2 --gres gpu:1 # x\n", b"#SBATCH -N2 # x\n"),
    ],
)
def test_an_option_is_taken_away(line: bytes, left: bytes) -> None:
    script = parse(HEAD + line + b"true\n")
    gres = next(d for d in script.directives if d.occurrence.name == "gres")
    assert scripts.without(script, gres).data == HEAD + left + b"true\n"


@pytest.mark.parametrize(
    ("line", "left"), [(b"-HCfoo", b"-H"), (b"-HC foo", b"-H"), (b"-Cfoo -H", b"-H")]
)
def test_one_letter_of_several_is_taken_away(line: bytes, left: bytes) -> None:
    script = parse(HEAD + b"#SBATCH " + line + b"\ntrue\n")
    constraint = next(d for d in script.directives if d.occurrence.name == "constraint")
    assert scripts.without(script, constraint).data == HEAD + b"#SBATCH " + left + b"\ntrue\n"


def test_our_own_lines_are_found_and_taken_out() -> None:
    data = HEAD + b"#XMEM keep-type\n#SBATCH -N1\n#XMEM off  now\ntrue\n#XMEM late\n"
    script = parse(data)
    assert [line.words for line in script.own_lines] == [("keep-type",), ("off", "now")]
    assert scripts.without_own_lines(script).data == HEAD + b"#SBATCH -N1\ntrue\n#XMEM late\n"


def test_a_line_break_cannot_be_written() -> None:
    with pytest.raises(ScriptError, match="cannot be written"):
        scripts.with_option(parse(HEAD), 0, "comment", "a\nb")


fragment = st.sampled_from(
    [
        b"#SBATCH ", b"#SBATCH", b"#SLURM ", b"#XMEM ", b"#PBS ", b"\n", b" ", b"\t", b"--gres=", b"--gres ", b"-C",
        b"gpu:1", b"-H", b"--", b"-", b"hetjob", b"packjob", b":", b'"', b"'", b"\\", b"#", b"--wrap=x", b"--nope",
        b"true\n", b"\xff", b"--mem=1G", b"\r\n", b"\0", b"#!/bin/sh\n", b"--nice",
    ]
)  # fmt: skip
data_like = st.lists(st.one_of(fragment, st.binary(max_size=4)), max_size=30).map(b"".join)


@given(data_like)
def test_reading_changes_nothing_and_fails_only_in_its_own_way(data: bytes) -> None:
    try:
        script = parse(data)
    except ScriptError:
        return
    assert script.data == data
    for directive in script.directives:
        assert data.split(b"\n")[directive.line - 1].startswith((b"#SBATCH", b"#SLURM"))


spelling = st.sampled_from(
    [
        "--gres=gpu:1", "--gres gpu:1", "-Cfoo", "-C foo", "-HCfoo", "-HC foo", "-H", "-HO", "--nice", "--nice=5",
        "-k5", '--comment="a b"', "--comment='a #b'", '"--comment=a b"', "--comment a\\ b", '--comment="a\\"b"',
        "-J '\udcff\u00e9'", "-G 'a'\"b\"", "--gpus-per-n=1", "--mem=", "--brand-new=1", "--hold", "-t\\#3",
    ]
)  # fmt: skip
directive_line = st.builds(
    lambda words, space, end: f"#SBATCH{space}{space.join(words)}{end}",
    st.lists(spelling, max_size=4),
    st.sampled_from([" ", "\t", "  "]),
    st.sampled_from(["", " ", " # note", " \\"]),
)
header_line = st.one_of(
    directive_line, st.sampled_from(["", "# note", "#SBATCH hetjob", "#XMEM off", "#SBATCH"])
)
sound_script = st.builds(
    lambda lines, rest: ("#!/bin/bash\n" + "\n".join(lines) + rest).encode(
        errors="surrogateescape"
    ),
    st.lists(header_line, min_size=1, max_size=8),
    st.sampled_from(["", "\n", "\ntrue\n", "\n\n#SBATCH -N7\ntrue"]),
)
value_like = st.text(st.characters(blacklist_characters="\n\0", codec="utf-8"), min_size=1)


def settings(script: scripts.Script) -> list[tuple[int, str, str | None]]:
    return [(d.component, d.occurrence.name, d.occurrence.value) for d in script.directives]


@given(sound_script, value_like, st.data())
def test_a_changed_value_reads_back_and_nothing_else_moves(
    data: bytes, value: str, choice: st.DataObject
) -> None:
    script = parse(data)
    places = [at for at, d in enumerate(script.directives) if d.occurrence.value is not None]
    assume(places)
    at = choice.draw(st.sampled_from(places))
    changed = scripts.with_value(script, script.directives[at], value)
    expected = settings(script)
    expected[at] = (*expected[at][:2], value)
    assert settings(changed) == expected
    mine = script.directives[at].line
    for number, (old, new) in enumerate(
        zip(data.split(b"\n"), changed.data.split(b"\n"), strict=True), 1
    ):
        assert number == mine or old == new


@given(sound_script, value_like)
def test_an_added_option_reads_back_last_and_nothing_else_moves(data: bytes, value: str) -> None:
    script = parse(data)
    changed = scripts.with_option(script, 0, "comment", value)
    end = len(script.components[0].directives)
    assert settings(changed) == [
        *settings(script)[:end],
        (0, "comment", value),
        *settings(script)[end:],
    ]
    left = changed.data.split(b"\n")
    del left[changed.components[0].directives[-1].line - 1]
    assert b"\n".join(left).rstrip(b"\n") == data.rstrip(b"\n")


@given(sound_script, st.data())
def test_a_removed_option_is_gone_and_the_others_stay(data: bytes, choice: st.DataObject) -> None:
    script = parse(data)
    assume(script.directives)
    at = choice.draw(st.sampled_from(range(len(script.directives))))
    changed = scripts.without(script, script.directives[at])
    expected = settings(script)
    del expected[at]
    assert settings(changed) == expected
