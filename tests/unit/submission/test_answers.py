"""The cache of answers: given only while all that the dry run read is as it was, whatever happens
to the cache."""

import json
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from xmem_slurm.decision import Decision, Kind
from xmem_slurm.dryrun import evidence
from xmem_slurm.dryrun.containers import images
from xmem_slurm.report import decided
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers
from xmem_slurm.trace import File

JOB = Submission(
    ("--gres=gpu:h200:1", "job.sh"), {"A": "1", "B": "2", "ODD": "\udcff"}, b"#!/bin/sh\n\xff\n"
)
READY = JOB.but(argv=("--gres=gpu:l4:1", "job.sh"), environ={"A": "9", "ODD": "\udcff"})
DECISION = Decision(Kind.REWRITTEN, JOB, READY, lines=["one", "two"], brief=["one"])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.py").write_text("layers = 1\n")
    return tmp_path / "model.py"


def keep(*files: evidence.Noted, job: Submission = JOB, days: float = answers.MOST_DAYS) -> str:
    name = answers.key(job, [])
    answers.keep_decision(name, DECISION._replace(written=job), evidence.lasting(files), days)
    return name


def rewrite(name: str, **fields: object) -> None:
    """Change what the head of a record says."""
    record = answers.STORE.read(name)
    assert record is not None
    answers.STORE.write(name, {**record.head, **fields}, [*map(record.part, range(3))])


def later() -> None:
    """Let the moment pass for which packages are not looked at again."""
    for seen in answers.PACKAGES_SEEN.folder.iterdir():
        seen.unlink()


def entry(name: str) -> Path:
    return Path(os.environ["XDG_CACHE_HOME"], "xmem-slurm", "answers", name)


def test_an_answer_comes_back_whole(model: Path) -> None:
    name = keep(evidence.as_it_is(model))
    found = answers.look_up(name, JOB)
    assert found is not None
    assert found.known_since is not None
    assert found._replace(known_since=None) == DECISION
    lines = decided.lines(found, verbose=True)
    assert lines[:2] == DECISION.lines
    assert "nothing that the dry run read has changed" in lines[2]


def test_what_it_is_kept_in_is_private(model: Path) -> None:
    path = entry(keep(evidence.as_it_is(model)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("change", ["longer", "same length", "gone", "a folder in its place"])
def test_an_edited_file_ends_it(change: str, model: Path) -> None:
    name = keep(evidence.as_it_is(model))
    if change == "longer":
        model.write_text("layers = 100\n")
    elif change == "same length":
        model.write_text("layers = 2\n")
        os.utime(model, ns=(0, model.stat().st_mtime_ns + 1))
    else:
        model.unlink()
        if change != "gone":
            model.mkdir()
    assert answers.look_up(name, JOB) is None


def test_a_file_with_another_time_and_the_same_content_does_not(model: Path) -> None:
    name = keep(evidence.as_it_is(model))
    os.utime(model, (0, 0))
    assert answers.look_up(name, JOB) is not None


def test_of_a_large_file_the_time_counts(model: Path) -> None:
    model.write_bytes(bytes(evidence.MOST_DIGESTED + 1))
    name = keep(evidence.as_it_is(model))
    os.utime(model, (0, 0))
    assert answers.look_up(name, JOB) is None


def test_what_the_job_leaves_in_a_folder_that_it_lists_does_not_end_it(model: Path) -> None:
    """Its output as sbatch names it, and what the script wrote: earlier runs left them there."""
    folder = model.with_name("runs")
    folder.mkdir()
    os.utime(folder, (0, 0))
    wrote = File("W", 0, 0, str(folder / "model[1].pt"))
    name = keep(evidence.as_it_is(folder), wrote, *evidence.made_by_slurm(["%x-%4j.out"], folder))
    (folder / "gpt-0017.out").touch()
    (folder / "model[1].pt").touch()
    assert answers.look_up(name, JOB) is not None
    (folder / "model1.pt").touch()
    assert answers.look_up(name, JOB) is None


def packages(folder: Path) -> list[Path]:
    """Make the files of an installed package."""
    package = folder / "site-packages" / "torch"
    package.mkdir(parents=True)
    files = [package / f"{number}.py" for number in range(50)]
    for file in files:
        file.touch()
    return files


@pytest.mark.skipif(os.getuid() == 0, reason="root can write everywhere")
def test_of_packages_that_are_not_ones_own_the_folder_is_looked_at(model: Path) -> None:
    read = packages(model.parent)
    package = read[0].parent
    package.chmod(0o555)
    name = keep(*map(evidence.as_it_is, read))
    record = answers.STORE.read(name)
    assert record is not None
    assert len(json.loads(record.part(2))) == 1
    assert answers.look_up(name, JOB) is not None
    package.chmod(0o755)
    (package / "new.py").touch()
    later()
    assert answers.look_up(name, JOB) is None


def test_of_ones_own_packages_each_file_is_looked_at(model: Path) -> None:
    read = packages(model.parent)
    package = read[0].parent
    name = keep(*map(evidence.as_it_is, read))
    assert entry(name).stat().st_size < 2000
    (package / "new.py").touch()
    assert answers.look_up(name, JOB) is not None
    read[7].write_text("import this")
    later()
    assert answers.look_up(name, JOB) is None


def test_of_many_submissions_at_once_one_looks_at_the_packages(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = packages(model.parent)
    name = keep(evidence.as_it_is(model), *map(evidence.as_it_is, read))
    looked: list[int] = []
    unchanged = evidence.unchanged
    monkeypatch.setattr(
        evidence, "unchanged", lambda files: looked.append(len(files)) or unchanged(files)
    )
    for _ in range(3):
        assert answers.look_up(name, JOB) is not None
    assert looked == [2, 1, 1]
    model.write_text("layers = 2\n")
    assert answers.look_up(name, JOB) is None


NAMED = JOB.but(
    argv=(
        "-J",
        "one",
        "--gres=gpu:h200:1",
        "--comment=first",
        "-o",
        "%x.out",
        "job.sh",
        "--comment=its",
    )
)


@pytest.mark.parametrize(
    ("argv", "ready"),
    [
        (
            ("--gres=gpu:h200:1", "job.sh", "--comment=its"),
            ("--gres=gpu:l4:1", "job.sh", "--comment=its"),
        ),
        (
            ("--gres=gpu:h200:1", "-Jtwo", "-Q", "job.sh", "--comment=its"),
            ("-Jtwo", "-Q", "--gres=gpu:l4:1", "job.sh", "--comment=its"),
        ),
        (
            ("--hold", "-W", "--signal=B:USR1@60", "--gres=gpu:h200:1", "job.sh", "--comment=its"),
            ("--hold", "-W", "--signal=B:USR1@60", "--gres=gpu:l4:1", "job.sh", "--comment=its"),
        ),
    ],
)
def test_options_that_cannot_matter_are_those_of_who_asks(
    argv: tuple[str, ...], ready: tuple[str, ...], model: Path
) -> None:
    answers.keep_decision(
        answers.key(NAMED, []),
        DECISION._replace(
            written=NAMED,
            ready=NAMED.but(argv=tuple(word.replace("h200", "l4") for word in NAMED.argv)),
        ),
        evidence.lasting([evidence.as_it_is(model)]),
    )
    other = NAMED.but(
        argv=argv, environ={**NAMED.environ, "SBATCH_JOB_NAME": "x", "XMEM_FRESH": "1"}
    )
    found = answers.look_up(answers.key(other, []), other)
    assert found is not None
    assert found.ready.argv == ready


def test_a_job_as_it_was_written_keeps_its_words_where_they_are(model: Path) -> None:
    answers.keep_decision(
        answers.key(NAMED, []),
        DECISION._replace(written=NAMED, ready=NAMED),
        evidence.lasting([evidence.as_it_is(model)]),
    )
    other = NAMED.but(argv=("--gres=gpu:h200:1", "-J", "two", "job.sh", "--comment=its"))
    found = answers.look_up(answers.key(other, []), other)
    assert found is not None
    assert found.ready == other


@pytest.mark.parametrize("where", ["script", "module"])
def test_the_name_of_a_job_counts_where_the_job_may_read_it(where: str, model: Path) -> None:
    job = NAMED.but(script=b"#!/bin/sh\n./$SLURM_JOB_NAME\n") if where == "script" else NAMED
    if where == "module":
        model.write_text("import os\nconfig = os.environ['SLURM_JOB_NAME']\n")
    answers.keep_decision(
        answers.key(job, []),
        DECISION._replace(written=job, ready=job),
        evidence.lasting([evidence.as_it_is(model)]),
    )
    assert answers.look_up(answers.key(job, []), job) is not None
    other = job.but(argv=("-J", "two", *job.argv[2:]))
    assert answers.look_up(answers.key(other, []), other) is None


DIRECTED = JOB.but(
    argv=("job.sh",),
    script=b"""#!/bin/bash
#SBATCH --gres=gpu:h200:1 -J one  # the first
#SBATCH --comment "of a paper" -o %x.out
#XMEM hold
python train.py
#SBATCH -J not-read
""",
)
"""A job whose script says all of it."""
EDITED = (
    (b"-J one", b"-Jtwo"),
    (b"-J one", b"--job-name='t w o' --mail-type=END"),
    (b'--comment "of a paper" -o %x.out', b"-Q"),
    (b"%x.out", b"/elsewhere/%j.out"),
)
"""What may be edited in it."""


def keep_changed(job: Submission, model: Path, script: bytes | None = None) -> str:
    """Keep that a job of such a script is to ask for another GPU, and what else that changed."""
    changed = (script or job.script or b"").replace(b"h200", b"l4")
    name = answers.key(job, [])
    answers.keep_decision(
        name,
        DECISION._replace(written=job, ready=job.but(script=changed)),
        evidence.lasting([evidence.as_it_is(model)]),
    )
    return name


@pytest.mark.parametrize(("old", "new"), EDITED)
def test_directives_that_cannot_matter_are_those_of_who_asks(
    old: bytes, new: bytes, model: Path
) -> None:
    name = keep_changed(DIRECTED, model)
    other = DIRECTED.but(script=(DIRECTED.script or b"").replace(old, new))
    assert other != DIRECTED
    assert answers.key(other, []) == name
    found = answers.look_up(name, other)
    assert found is not None
    assert found.ready == other.but(script=(other.script or b"").replace(b"h200", b"l4"))


def test_a_job_as_it_was_written_keeps_its_own_script(model: Path) -> None:
    name = answers.key(DIRECTED, [])
    answers.keep_decision(
        name,
        DECISION._replace(written=DIRECTED, ready=DIRECTED),
        evidence.lasting([evidence.as_it_is(model)]),
    )
    other = DIRECTED.but(script=(DIRECTED.script or b"").replace(b"-J one", b"-J two"))
    found = answers.look_up(name, other)
    assert found is not None
    assert found.ready == other


def test_where_more_of_the_script_was_changed_it_is_for_that_one(model: Path) -> None:
    """A site's template may add a name, or a comment."""
    script = (DIRECTED.script or b"").replace(b"-J one", b"-J one-sized")
    name = keep_changed(DIRECTED, model, script)
    found = answers.look_up(name, DIRECTED)
    assert found is not None
    assert found.ready.script == script.replace(b"h200", b"l4")
    other = DIRECTED.but(script=(DIRECTED.script or b"").replace(b"-J one", b"-J two"))
    assert answers.key(other, []) == name
    assert answers.look_up(name, other) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"h200:1 -J", b"h200:2 -J"),
        (b"-J not-read", b"-J other"),
        (b"-J one", b"-J one -t 10"),
        (b"-J one", b"-OJone"),
        (b"# the first", b"# the other"),
        (b"#XMEM", b"#SBATCH --comment=a line more\n#XMEM"),
    ],
)
def test_of_a_script_all_else_counts(old: bytes, new: bytes) -> None:
    other = DIRECTED.but(script=(DIRECTED.script or b"").replace(old, new))
    assert other != DIRECTED
    assert answers.key(other, []) != answers.key(DIRECTED, [])


@pytest.mark.parametrize(
    ("reads", "held"),
    [
        (b"python $SLURM_JOB_NAME.py", False),
        (b"squeue -hj $SLURM_JOB_ID -o %k", False),
        (b"grep '#SBATCH -J' $0", False),
        (b"# of SLURM", True),
    ],
)
def test_directives_count_where_the_job_may_read_them(
    reads: bytes, held: bool, model: Path
) -> None:
    job = DIRECTED.but(script=(DIRECTED.script or b"").replace(b"python", reads + b"\npython"))
    name = keep_changed(job, model)
    assert answers.look_up(name, job) is not None
    other = job.but(script=(job.script or b"").replace(b"-J one", b"-J two"))
    assert (answers.look_up(answers.key(other, []), other) is not None) == held


def test_a_comment_counts_where_slurm_is_asked_about_the_job(model: Path) -> None:
    asking = JOB.but(argv=("--comment=1", "job.sh"), script=b"#!/bin/sh\nsqueue -ho %k\n")
    name = keep_changed(asking, model)
    other = asking.but(argv=("--comment=2", "job.sh"))
    assert answers.key(other, []) == name
    assert answers.look_up(name, asking) is not None
    assert answers.look_up(name, other) is None


def test_in_a_heterogeneous_job_all_words_count() -> None:
    one, other = (
        JOB.but(argv=("-n1", ":", "-J", name, "--gres=gpu:1", "job.sh")) for name in ("one", "two")
    )
    assert answers.key(one, []) != answers.key(other, [])
    script = b"#!/bin/sh\n#SBATCH -J %s\n#SBATCH hetjob\n#SBATCH --gres=gpu:1\n"
    one, other = (JOB.but(argv=("job.sh",), script=script % name) for name in (b"one", b"two"))
    assert answers.key(one, []) != answers.key(other, [])


def test_a_file_that_comes_into_being_ends_it(model: Path) -> None:
    checkpoint = model.with_name("checkpoint.pt")
    name = keep(evidence.as_it_is(checkpoint))
    assert answers.look_up(name, JOB) is not None
    checkpoint.touch()
    assert answers.look_up(name, JOB) is None


def test_another_file_in_a_folder_that_was_listed_ends_it(model: Path) -> None:
    data = model.with_name("data")
    data.mkdir()
    os.utime(data, (0, 0))
    name = keep(evidence.as_it_is(data))
    assert answers.look_up(name, JOB) is not None
    (data / "more.bin").touch()
    assert answers.look_up(name, JOB) is None


def test_nothing_is_kept_of_a_file_that_was_edited_while_the_dry_run_ran(model: Path) -> None:
    read = evidence.as_it_is(model)
    model.write_text("layers = 100\n")
    assert not entry(keep(read)).exists()


def test_nothing_is_kept_where_not_everything_was_noted(model: Path) -> None:
    assert not entry(keep(evidence.as_it_is(model), File("T", 0, 0, ""))).exists()


def test_what_the_job_wrote_itself_does_not_count(model: Path) -> None:
    """Written before it was read: the job's own. Read before it was written: a file of this
    machine."""
    made = File("R", 5, 5, str(model.with_name("made.json")))
    assert answers.look_up(keep(File("W", 0, 0, made.path), made), JOB) is not None
    assert not entry(
        keep(made, File("W", 0, 0, made.path), job=JOB.but(argv=("other.sh",)))
    ).exists()


def test_an_image_with_another_header_is_another_image(model: Path) -> None:
    """Also where its path, size and time are the same; what follows the header is not read."""
    image = model.with_name("image.sif")
    image.write_bytes(bytes(images.HEADER_BYTES) + b"a")
    os.utime(image, ns=(5, 5))
    name = keep(evidence.as_it_is(image), File("I", images.identity(image), 0, str(image)))
    image.write_bytes(bytes(images.HEADER_BYTES) + b"b")
    os.utime(image, ns=(5, 5))
    assert answers.look_up(name, JOB) is not None
    image.write_bytes(bytes(images.HEADER_BYTES - 1) + b"1a")
    os.utime(image, ns=(5, 5))
    assert answers.look_up(name, JOB) is None


def test_of_an_image_only_a_regular_file_is_opened(model: Path) -> None:
    """The job may have named anything."""
    os.mkfifo(model.with_name("fifo"))
    assert images.identity(model.with_name("fifo")) == images.identity(model.with_name("none")) == 0


@pytest.mark.parametrize(
    ("job", "wishes"),
    [
        (JOB.but(argv=(*JOB.argv, "--lr=1")), []),
        (JOB.but(script=b"#!/bin/sh\n"), []),
        (JOB.but(script=None), []),
        (JOB.but(environ={**JOB.environ, "PYTORCH_CUDA_ALLOC_CONF": "x"}), []),
        (JOB, ["keep-type"]),
    ],
)
def test_another_submission_has_another_name(job: Submission, wishes: Sequence[object]) -> None:
    assert answers.key(job, wishes) != answers.key(JOB, [])


def test_the_folder_is_part_of_the_name_and_the_login_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = answers.key(JOB, [])
    assert (
        answers.key(JOB.but(environ={**JOB.environ, "SSH_TTY": "/dev/pts/7", "SHLVL": "3"}), [])
        == before
    )
    monkeypatch.chdir(tmp_path)
    assert answers.key(JOB, []) != before


@pytest.mark.parametrize("days", [answers.MOST_DAYS, answers.DAYS_WITHOUT_ESTIMATE])
def test_old_answers_are_not_given(model: Path, days: int) -> None:
    name = keep(evidence.as_it_is(model), days=days)
    for seconds, given in ((-60, True), (60, False)):
        rewrite(name, made=time.time() - (days * 86400 + seconds))
        assert (answers.look_up(name, JOB) is not None) == given


def test_an_answer_that_does_not_last_is_for_those_who_waited_for_it(model: Path) -> None:
    before = time.time()
    name = keep(evidence.as_it_is(model), days=answers.FOR_WHO_WAITS)
    assert answers.look_up(name, JOB) is None
    assert answers.look_up(name, JOB, before) is not None
    assert answers.look_up(name, JOB, time.time()) is None, "it was there before"
    model.write_text("layers = 100\n")
    assert answers.look_up(name, JOB, before) is None


def test_damage_is_no_answer(model: Path) -> None:
    path = entry(name := keep(evidence.as_it_is(model)))
    whole, dice = path.read_bytes(), random.Random(0)
    other: list[bytes] = [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"1",
        whole[:-1],
        whole * 2,
        b'[{"made": 9e99}, [1]]\n1',
    ]
    record = answers.STORE.read(name)
    assert record is not None
    for field in record.head:
        for wrong in (None, 7, "x", [7], {"a": 1}):
            rewrite(name, **{**record.head, field: wrong})
            other.append(path.read_bytes())
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(dice.randrange(1, 9)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        other.append(bytes(damaged))
    for content in other:
        path.write_bytes(content)
        answers.look_up(name, JOB)  # raises nothing
    assert not any(
        path.write_bytes(content) and answers.look_up(name, JOB) for content in other[:8]
    )


def test_what_others_could_have_written_is_not_believed(model: Path) -> None:
    path = entry(name := keep(evidence.as_it_is(model)))
    path.chmod(0o622)
    assert answers.look_up(name, JOB) is None
    path.chmod(0o600)
    assert answers.look_up(name, JOB) is not None
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    assert answers.look_up(name, JOB) is None
    path.unlink()
    os.mkfifo(path)
    assert answers.look_up(name, JOB) is None


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file away")
def test_what_somebody_else_owns_is_not_believed(model: Path) -> None:
    path = entry(name := keep(evidence.as_it_is(model)))
    os.chown(path, 65534, 65534)
    assert answers.look_up(name, JOB) is None


def test_only_so_many_are_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STORE", answers.STORE._replace(most=3))
    names = [
        keep(evidence.as_it_is(model), job=JOB.but(argv=(str(number),))) for number in range(5)
    ]
    for age, name in enumerate(reversed(names)):
        if entry(name).exists():
            os.utime(entry(name), (time.time() - age,) * 2)
    last = keep(evidence.as_it_is(model), job=JOB.but(argv=("last",)))
    assert len(list(entry(last).parent.iterdir())) == 3
    assert entry(last).exists()


def test_no_room_is_no_error(model: Path) -> None:
    Path(os.environ["XDG_CACHE_HOME"]).write_text("a file where a folder should be")
    assert answers.look_up(keep(evidence.as_it_is(model)), JOB) is None


def _write_and_read(arguments: tuple[int, str]) -> bool:
    number, model = arguments
    answers.keep_decision(
        "shared", DECISION._replace(lines=[str(number) * 10_000]), [evidence.as_it_is(Path(model))]
    )
    found = answers.look_up("shared", JOB)
    return found is not None and len(set(found.lines[0])) <= 3 and found.ready == READY


def test_two_hundred_writers_of_one_entry(model: Path) -> None:
    """Every reader sees a whole answer, of whichever writer."""
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert all(
            pool.map(_write_and_read, [(number, str(model)) for number in range(200)], chunksize=1)
        )
    assert [file.name for file in entry("shared").parent.iterdir()] == ["shared"]


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_nothing_is_kept_or_thrown_away_where_others_can_write(model: Path, mode: int) -> None:
    kept = entry(keep(evidence.as_it_is(model)))
    kept.parent.chmod(mode)
    old = kept.parent / "somebody's"
    old.touch()
    os.utime(old, (0, 0))
    assert not entry(keep(evidence.as_it_is(model), job=JOB.but(argv=("another",)))).exists()
    assert old.exists()
