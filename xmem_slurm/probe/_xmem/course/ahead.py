"""What can the loops that are running still do that they have not done? Read from their source, and told by line.

A dry run ends long before the script's own loops do. This says whether anything is missed by that. For each function of
the script on the way to the training step, its source is parsed, the loops that the current line stands in are found,
and their variables give how far they are (`for epoch in range(90)` at epoch 2, `step += 1`). Then conditions that hang
on these alone are computed for all iterations to come, by the script's own expressions with its own values: a branch
that was never taken and will be (`step % 1000 == 0`, `epoch == unfreeze_at`) is named with the iteration that takes it,
and so is a size that takes a new value (`batch = 32 * 2 ** (epoch // 2)`). What follows a loop is reached at its end.

Conditions on anything else (a loss, the clock) cannot be foreseen: such a branch counts as missed if it speaks of
evaluation, or of a checkpoint, and none was seen. Statements that only print or log matter to nobody. Loops of
installed packages (Trainer, Lightning) are not looked into: there nothing is certain but the end.
"""

import ast
import inspect

from _xmem.course import expressions, feeds
from _xmem.course.changes import counts, enlarges, first_larger, kept, size_of
from _xmem.course.expressions import held, is_pure
from _xmem.course.loops import MOST_VALUES, Called, LoopCourse, listed, local
from _xmem.course.source import (
    branches,
    calls,
    function,
    is_installed,
    is_own,
    is_within,
    last_line,
    last_name,
    loops_at,
    loops_in,
    names,
    own,
    repeats,
    statements,
    text,
    within,
)
from _xmem.course.words import CHECKPOINT, EVALUATION, HARMLESS, SAVING
from _xmem.course.work import at_end, counts_on_gpu, works

SETS, ADDS_UP = "sets", "adds up"
"""What an assignment does: it does so once, or more each time."""
_MATTERS = 0.02
"""What is kept matters where it comes to this share of what is allocated."""
_MOST_CALLS = 500
"""So many calls are followed in one look."""
_DEEP = 6
"""Functions of the script's that call its functions are followed so far."""


class Unseen:
    """Something to come: what, at which place, in how many iterations of its loop (None: unknown).

    `inner`: that loop is the innermost, around the step. `early`: it was seen, but only before the first step.
    """

    def __init__(self, what, where, iterations, inner, early):
        self.what, self.where, self.iterations, self.inner, self.early = what, where, iterations, inner, early


class Outlook:
    """What one look found. `certain`: every loop on the way was one that could be read."""

    def __init__(self):
        self.loops, self.unseen, self.fed, self.certain = [], [], [], True
        """`loops` has (where, iterations done, of how many; None where that is not known), the innermost first;
        `fed` are those of `unseen` that are of what gives the batches."""


def look(frame, alone, evaluated, saved, steps, *, allocated=0):
    """Look ahead from a frame and those that called it.

    `alone`: there is one rank; `evaluated`, `saved`, `steps`: whether there was an evaluation, a checkpoint, and how
    many steps there were; `allocated` are the bytes that are now.
    """
    outlook = Outlook()
    facts = {"alone": alone, "evaluated": evaluated, "saved": saved, "steps": steps, "left": [MOST_VALUES]}
    facts["calls"], facts["fed"] = _MOST_CALLS, []
    facts["matters"] = _MATTERS * allocated
    try:
        _look(frame, facts, outlook)
    except Exception:  # source that nobody thought of here must not end the script
        outlook.certain = False
    outlook.certain = outlook.certain and facts["left"][0] >= 0  # else conditions are left that nobody computed
    return outlook


def _look(frame, facts, outlook):
    """Look ahead in each function on the way to the step, the innermost first."""
    inner = True
    while frame is not None:
        if is_installed(frame.f_code.co_filename):
            of_torch = str(frame.f_globals.get("__name__")).partition(".")[0] == "torch"
            if not of_torch and loops_at(function(frame.f_code, frame.f_globals), frame.f_lineno):
                outlook.certain = False
        elif is_own(frame.f_code, frame.f_globals):
            node = function(frame.f_code, frame.f_globals)
            if node is None:
                outlook.certain = False
            else:
                inner = _Frame(frame, node, facts, outlook, inner).look() and inner
        is_script = frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        frame = None if is_script else frame.f_back


class _Frame:
    """One function on the way to the step, and what its loops can still do."""

    def __init__(self, frame, function, facts, outlook, innermost, *, gave=False):
        self._function, self._facts, self._outlook = function, facts, outlook
        self._innermost, self._line, self._deep = innermost, frame.f_lineno, 0
        self._past = frame.f_lineno + gave * 0.5  # what a generator gave is behind it
        self._names = {**frame.f_globals, **frame.f_locals}
        self._file = frame.f_code.co_filename.rpartition("/")[2]

    def look(self):
        """Look ahead; return whether there is no loop."""
        line, loops = self._line, loops_at(self._function, self._line)
        courses = [
            LoopCourse(loop, self._names, self._past, self._facts["steps"], self._facts["left"]) for loop in loops
        ]
        self._outlook.loops += [
            (self._where(loop), course.done, course.of)
            for loop, course in zip(reversed(loops), reversed(courses))  # noqa: B905
        ]
        for depth in range(len(loops)):
            self._loop(loops[depth:], courses[depth:])
        if loops:
            alone = self._innermost and len(loops) == 1
            self._following(statements(self._function), last_line(loops[0]), courses[0], alone)
        elif not self._innermost:
            self._following(statements(self._function), line, None, False)
        return not loops

    def _loop(self, loops, courses):
        """Look ahead in the first of these loops, the others of which are in it; `courses` are theirs."""
        loop, course, innermost = loops[0], courses[0], self._innermost and len(loops) == 1
        if isinstance(loop, ast.For) and not innermost and not course.done and self._uses(loop):
            self._outlook.certain = False
        if isinstance(loop, ast.For) and any(map(self._chooses, calls(loop))):
            self._outlook.certain = False
        self._body(loop, course, innermost)
        self._inner(loops, course)
        for each, size, times in kept(loop, course, innermost, self._names):
            if size * times > self._facts["matters"]:
                self._add(each, None, innermost, "`%s`, %d times more," % (text(each), times))
        for source in feeds.of(loop, self._names):
            self._fed(source)
        first_round = course.done is None or course.done <= 1
        if len(loops) > 1 and first_round:
            self._following(loop.body, last_line(loops[1]), courses[1], self._innermost and len(loops) == 2)
        elif first_round and not innermost:
            self._following(loop.body, self._line, None, False)

    def _inner(self, loops, course):
        """Note what hangs on the outer loop's variables in those in it, and what makes sizes larger between them."""
        for each in loops[1:]:
            self._branches(each, course, False)
            self._sizes(each, course, False)
        for each in loops[0].body if len(loops) > 1 else ():
            if course.left != 0 and enlarges(each, self._names):
                self._add(each, 1, False)

    def _fed(self, source):
        """Look ahead in a generator of the script's that gives what the loop goes through."""
        node = function(source.gi_code, source.gi_frame.f_globals)
        if source in self._facts["fed"]:
            return
        self._facts["fed"].append(source)
        if node is None:
            self._outlook.certain = False
        else:
            loops, self._outlook.loops, known = self._outlook.loops, [], len(self._outlook.unseen)
            _Frame(source.gi_frame, node, self._facts, self._outlook, self._innermost, gave=True).look()
            self._outlook.loops = loops
            self._outlook.fed += self._outlook.unseen[known:]

    def _where(self, node):
        return "%s:%d" % (self._file, node.lineno)

    def _add(self, node, iterations, innermost, what=None, *, early=False):
        self._outlook.unseen.append(
            Unseen(what or "`%s`" % text(node), self._where(node), iterations, innermost, early)
        )

    def _chooses(self, call):
        """Whether it calls a generator of the script's with conditions: where that one is, is not known."""
        target = own(held(call.func, self._names))
        return (
            target is not None
            and inspect.isgeneratorfunction(target[0])
            and any(isinstance(each, (ast.If, ast.IfExp)) for each in ast.walk(target[2]))
        )

    def _uses(self, loop):
        """Whether a loop that is not the innermost uses its variable; what that will be is not known."""
        used = set().union(*(names(each) for each in loop.body))
        return bool(names(loop.target) & used)

    # -- what follows a loop -------------------------------------------------------------------------------------------

    def _following(self, block, line, course, innermost):
        """Note what stands in a block after a line: it comes when the loop before it, `course`, has ended."""
        for each in block:
            if each.lineno > line and not self._is_harmless(each):
                self._add(each, course.left if course else None, innermost)
                return
            if each.lineno <= line <= each.end_lineno and not isinstance(each, (ast.FunctionDef, ast.ClassDef)):
                self._following(each.orelse if repeats(each, line) else statements(each), line, course, innermost)
                ends = each.items if isinstance(each, ast.With) else ()
                if any(not self._is_quiet(*call, _DEEP) for item in ends for call in at_end(item, self._names)):
                    self._add(each, course.left if course else None, innermost)

    def _is_harmless(self, node):
        """Whether a statement can be left out: it defines, prints, logs, or writes a checkpoint of one process."""
        if isinstance(
            node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Raise)
        ):
            return True
        found = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
        if isinstance(node, ast.With):  # what it opens is no matter, what is done in it is
            found = [each for part in node.body for each in ast.walk(part) if isinstance(each, ast.Call)]
        return all(self._is_quiet(each, self._names, _DEEP) for each in found) and not works(node, self._names)

    def _is_quiet(self, call, variables, deep):
        """Whether a call only prints, logs or saves by its name, and if it is the script's own by what it calls."""
        name, saves = last_name(call.func), self._facts["alone"] or self._facts["saved"]
        if not (HARMLESS.fullmatch(name) or (saves and SAVING.fullmatch(name))):
            return False
        if name == "append" and any(getattr(held(each, variables), "is_cuda", False) for each in call.args):
            return False
        target = own(held(call.func, variables)) if deep else None
        return target is None or all(
            self._is_quiet(each, target[0].__globals__, deep - 1)
            for each in ast.walk(target[2])
            if isinstance(each, ast.Call)
        )

    # -- branches ------------------------------------------------------------------------------------------------------

    def _body(self, node, course, innermost):
        """Note what a loop, or a function that one calls, does not do in each iteration."""
        self._branches(node, course, innermost)
        self._sizes(node, course, innermost)
        if any(self._is_hidden(statement, course) for statement in within(node)):
            self._outlook.certain = False
        if self._deep < _DEEP:
            for statement in within(node):
                for call in calls(statement):
                    self._called(call, course, innermost)
        for loop in loops_in(node):
            if not loop.lineno <= self._line <= loop.end_lineno:
                self._beside(loop, course, innermost)

    def _beside(self, loop, course, innermost):
        """Look into a loop that the step is not in, for each of a list that it goes through: callbacks, layers."""
        names = self._names
        for bound in listed(loop, names):
            self._names = {**names, **bound}
            meant = local(loop, self._names) if bound else {}
            self._names.update(meant)
            self._body(loop, course.beside({**bound, **meant}, loop), innermost)
        self._names = names

    def _is_hidden(self, statement, course):
        """Whether it sets a number, which may be a size, by what cannot be computed for iterations to come."""
        if not isinstance(statement, ast.Assign):
            return False
        targets = getattr(statement.targets[0], "elts", statement.targets)
        if not any(type(held(target, self._names)) is int for target in targets):
            return False
        source = course.own(statement.value)
        return course.hangs(source) and not is_pure(source, self._names)

    def _branches(self, loop, course, innermost):
        for node, then, otherwise in branches(loop):
            if not is_within(node.body, self._line):
                for body, wanted in ((then, True), (otherwise, False)):
                    if (
                        body
                        and not is_within(body, self._line)
                        and not (all(map(self._is_harmless, body)) and not any(map(self._changes, body)))
                    ):
                        self._branch(node, body, wanted, course, innermost)

    def _branch(self, node, body, wanted, course, innermost):
        """Note a branch that is taken in an iteration to come, and was not so far."""
        if any(isinstance(each, (ast.Break, ast.Return)) for each in body) and len(body) == 1:
            return
        if names(node.test) & course.unknown or counts_on_gpu(node.test, self._names):
            self._outlook.certain = False
        if not course.moves(node.test):
            return  # the same in every iteration, or of another loop
        values = course.values(node.test, node.lineno)
        if values is None:
            first = course.first_of_parts(node, wanted)
            if first is not None:
                self._add(body[0], first, innermost)
                return
            said = " ".join(ast.unparse(each) for each in body)
            evaluates = EVALUATION.search(said) and not self._facts["evaluated"]
            saves = CHECKPOINT.search(said) and not (self._facts["saved"] or self._facts["alone"])
            if evaluates or saves:
                self._add(body[0], None, innermost)
            return
        past, future = values
        taken = [bool(value) is wanted for value in past]
        adds_up = any(self._changes(each) == ADDS_UP for each in body)
        early = innermost and node.lineno < self._line and taken[:1] == [True] and not any(taken[1:])
        if adds_up or early or not any(taken):
            first = next((number for number, value in enumerate(future, 1) if bool(value) is wanted), None)
            if first is not None:
                self._add(body[0], first, innermost, early=early)

    def _changes(self, node):
        """Whether a statement sets what may be a size or a switch: no number that is a float, and no counter."""
        found = ""
        for each in ast.walk(node):
            if isinstance(each, (ast.Assign, ast.AugAssign)):
                target = each.targets[0] if isinstance(each, ast.Assign) else each.target
                if isinstance(target, ast.Attribute):
                    found = found or SETS
                elif isinstance(target, ast.Name) and isinstance(self._names.get(target.id), (int, tuple, type(None))):
                    again = isinstance(each, ast.AugAssign) or target.id in names(each.value)
                    again = again and target.id in self._names
                    counts = again and isinstance(each.value, ast.Constant) and each.value.value == 1
                    found = found if counts else ADDS_UP if again else found or SETS
        return found

    # -- functions of the script's -------------------------------------------------------------------------------------

    def _called(self, call, course, innermost):
        """Look into what a loop calls, with what that is given: `sample_every(step)`, `self.step += 1` in a method."""
        for target in (own(held(call.func, self._names)), *feeds.hooks(call, self._names)):
            self._facts["calls"] -= 1
            if target is not None and self._facts["calls"] > 0 and not is_pure(call, self._names):
                self._entered(target, call, course, innermost)

    def _entered(self, target, call, course, innermost):
        """Look into a function that a loop calls in each iteration."""
        found, bound, node = target
        variables = {name: each for name, each in found.__globals__.items() if name not in found.__code__.co_varnames}
        parameters, given = [each.arg for each in node.args.args], {}
        if bound is not None:
            variables[parameters.pop(0) if parameters else "self"] = bound
        pairs = [*zip(parameters, call.args), *((each.arg, each.value) for each in call.keywords)]  # noqa: B905
        for name, argument in pairs:
            variables[name] = held(argument, self._names)
            values = course.values(argument, call.lineno) if course.moves(argument) else None
            if values is not None:
                given[name] = values
        course = Called(node, variables, given, course, call.lineno)
        _Called(self, found, node, variables).look(course, innermost)
        for other, its, names_of in course.seen_by(bound, node, found) if self._deep + 1 < _DEEP else ():
            seen = Called(its, names_of, {}, course, node.end_lineno)
            _Called(self, other, its, names_of).look(seen, innermost)
            if its.decorator_list and any(isinstance(e, ast.Assign) and seen.moves(e.value) for e in within(its)):
                self._outlook.certain = False  # a property that computes in steps

    # -- sizes ---------------------------------------------------------------------------------------------------------

    def _sizes(self, loop, course, innermost):
        """Note numbers that will take values that they had not: what is made of them may be larger."""
        for statement in within(loop):
            if not isinstance(statement, (ast.If, ast.While)):
                parts = expressions.sizes(statement, self._names, _is_said, course.listed)
                next((True for node in parts if self._size(node, statement, course, innermost)), None)

    def _size(self, node, statement, course, innermost):
        values = course.values(node, statement.lineno) if course.moves(node) else None
        first = None if values is None else first_larger(*values, places=isinstance(node, ast.UnaryOp))
        if first is None:
            return False
        numbers = [size_of(each) for part in values for each in part]
        evenly = len({numbers[at] - numbers[at - 1] for at in range(1, len(numbers))}) == 1
        if not names(node) & course.listed and ((evenly and innermost) or counts(node)):
            return False  # it counts, or says where a batch begins
        self._add(statement, first, innermost, "`%s` of %s" % (text(node), values[1][first - 1]))
        return True


def _is_said(name):
    return name != "range" and HARMLESS.fullmatch(name)


class _Called(_Frame):
    """A function of the script that a loop calls, and what it does only at some of its calls."""

    def __init__(self, caller, found, node, variables):
        self._function, self._facts, self._outlook = node, caller._facts, caller._outlook
        self._line, self._deep, self._names = 0, caller._deep + 1, variables
        self._file = found.__code__.co_filename.rpartition("/")[2]

    def look(self, course, innermost):
        """Look ahead: `course` is how its parameters move, in the innermost loop or not."""
        self._body(self._function, course, innermost)
