"""The tool that changes code to see whether tests notice, on a project of one function."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants import (
    LIST,
    ROOT,
    BrokenList,
    Mutation,
    Told,
    judge,
    read_list,
    run,
    stale,
)
from tests.random_mutants import draw

CODE = "def half(number):\n    return number // 2\n"
TESTS = """
from half import half

def test_half():
    assert half(4) == 2

def test_of_any():
    assert half(5) == 2
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "half.py").write_text(CODE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_half.py").write_text(TESTS)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def mutation(new: str, *, what: str = "", reason: str = "", test: str = "") -> Mutation:
    tests = (f"tests/test_half.py{test}",)
    return Mutation("half.py", what or new, "number // 2", new, tests, reason)


def test_the_list_fits_the_code() -> None:
    mutations = read_list(LIST)
    assert stale(mutations, ROOT) == []
    assert len(mutations) >= 100
    assert sum(bool(each.reason) for each in mutations) <= 5


def test_what_no_test_notices_survives_and_needs_a_reason(project: Path) -> None:
    killed, survivor = mutation("number // 3"), mutation("number >> 1")
    spared = mutation("number / 2", test="::test_half")
    found = run([killed, survivor, spared], root=project, matrix=True)
    assert [found[each].survived for each in (killed, survivor, spared)] == [False, True, True]
    both = {"tests/test_half.py::test_half", "tests/test_half.py::test_of_any"}
    assert {*found[killed].failed} == both
    assert (project / "half.py").read_text() == CODE, "the change was made in a copy"
    status, told = judge(found)
    assert status == 1 and "half.py: number >> 1: NO REASON; add a test" in told
    assert told.startswith("3 mutations, 2 survived (at most 5 may)\n")


def test_few_survivors_with_reasons_are_accepted() -> None:
    spared = [mutation(str(number), reason="it is the same") for number in range(10)]
    survived, killed = Told(True, "survived"), Told(False, "killed")
    assert judge(dict.fromkeys(spared[:5], survived))[0] == 0
    assert judge(dict.fromkeys(spared[:6], survived))[0] == 1
    status, told = judge({spared[0]: killed})
    assert status == 1 and "half.py: 0 was noticed: take its reason off the list" in told
    drawn = [replace(mutation(str(number)), drawn=True) for number in range(10)]
    found = dict.fromkeys(drawn, killed)
    assert judge(found | {drawn[0]: survived})[0] == 0
    assert judge(found | dict.fromkeys(drawn[:2], survived))[0] == 1


def test_an_endless_test_notices_but_one_that_cannot_run_says_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokenList, match="the tests could not be run:\n"):
        run([mutation("(")], root=project)
    (told,) = run([replace(mutation("("), drawn=True)], root=project).values()
    assert not told.survived and told.how == "killed: its tests could not begin"
    monkeypatch.setattr("tests.mutants._LONGEST", 0.01)
    (told,) = run([mutation("__import__('time').sleep(99)")], root=project).values()
    assert not told.survived and told.how == "killed: its tests did not end"


def test_tests_that_fail_without_any_change_say_nothing(project: Path) -> None:
    (project / "half.py").write_text(CODE.replace("2", "3"))
    with pytest.raises(BrokenList, match=r"without any change the tests do not pass:\n"):
        run(
            [Mutation("half.py", "a third", "number // 3", "3", ("tests/test_half.py",))],
            root=project,
        )


def test_all_that_is_out_of_date_is_told_at_once(project: Path) -> None:
    (project / "twice.py").write_text("1 1\n")
    tests = ("tests/test_half.py::test_none", "tests/test_gone.py")
    wrong = [
        Mutation("half.py", "a", "number // 3", "0", ("tests/test_half.py",)),
        Mutation("twice.py", "b", "1", "0", ("tests/test_half.py::test_half",)),
        Mutation("gone.py", "c", "1", "0", ("tests/test_half.py",)),
        Mutation("half.py", "d", "number // 2", "0", tests),
    ]
    lines = stale(wrong, project)
    assert [line.removeprefix("the list is out of date: ") for line in lines] == [
        "half.py: a: the file holds 'number // 3' 0 times, once is needed",
        "twice.py: b: the file holds '1' 2 times, once is needed",
        "gone.py: c: the file holds '1' 0 times, once is needed",
        "half.py: d: there is no tests/test_half.py::test_none",
        "half.py: d: there is no tests/test_gone.py",
    ]
    with pytest.raises(BrokenList) as error:
        run(wrong, root=project)
    assert str(error.value) == "\n".join(lines)


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ('{what = "b", old = "c"}', "missing .* 'new'"),
        (
            '{what = "b", old = "c", new = "d"}, {what = "b", old = "e", new = "d"}',
            "two mutations are called a.py: b",
        ),
    ],
)
def test_a_list_that_says_too_little_is_refused(entries: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(f'["a.py"]\ntests = ["t"]\nmutations = [{entries}]')
    with pytest.raises(BrokenList, match=told):
        read_list(tmp_path / "list.toml")


def test_changes_are_drawn_by_a_seed_and_are_code() -> None:
    drawn = draw(ROOT, 40, 1, ["dlemu/judge", "dlemu/units"])
    assert drawn == draw(ROOT, 40, 1, ["dlemu/judge", "dlemu/units"])
    assert drawn != draw(ROOT, 40, 2, ["dlemu/judge", "dlemu/units"])
    assert stale(drawn, ROOT) == []
    assert len({each.name for each in drawn}) == 40
    for each in drawn:
        compile(each.new, each.file, "exec")
        assert each.new != each.old and "tests/test_golden.py" in each.tests
