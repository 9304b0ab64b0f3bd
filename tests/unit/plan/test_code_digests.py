from __future__ import annotations

import sys
import zipfile
from importlib.metadata import version
from types import ModuleType

import pytest

from headrace.config._types import PipelineCode
from headrace.plan.digests import code_digests, described_difference

FILES = {
    "made_here/__init__.py": "",
    "made_here/main.py": "from made_here import rules\nfrom .records import Order\npipeline = rules.made(Order)\n",
    "made_here/records.py": "class Order:\n    amount = 1\n",
    "made_here/rules.py": "def made(record):\n    from made_here.later import late\n    return late(record)\n",
    "made_here/later.py": "import msgspec\n\ndef late(record):\n    return record\n",
    "made_here/unrelated.py": "LIMIT = 1\n",
}
USED = {f"made_here/{name}.py" for name in ("__init__", "main", "records", "rules", "later")}


PATH = sys.path[:]


@pytest.fixture(autouse=True)
def path(monkeypatch):
    """Keep `sys.path` as it is."""
    monkeypatch.setattr(sys, "path", PATH[:])


@pytest.fixture
def home(tmp_path):
    """Return the home of a project whose modules import each other."""
    return write(tmp_path / "home", FILES)


def write(home, files):
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


def digests(home, **options):
    sys.path[:] = PATH
    return code_digests(PipelineCode("made_here.main:pipeline", str(home), **options))


def changed(before, now):
    return [name for name in sorted({*before, *now}) if before.get(name) != now.get(name)]


def test_all_imported_modules_of_a_project_count(home):
    result = digests(home)
    assert {name for name in result if not name.startswith("package ")} == USED
    assert result["package msgspec"] == version("msgspec")


def test_modules_are_not_run(home):
    digests(home)
    assert not [name for name in sys.modules if name.startswith("made_here")]


@pytest.mark.parametrize("name", sorted(USED))
def test_change_of_an_imported_module_shows(home, name):
    before = digests(home)
    (home / name).write_text((home / name).read_text() + "\nMORE = 1\n")
    assert changed(before, digests(home)) == [name]


@pytest.mark.parametrize(
    "text",
    [
        "# why\nclass Order:\n    amount = 1\n",
        "class Order:\r\n    amount = 1\r\n",
        "class Order:\n\n  amount = ( 1 )  # cents\n",
    ],
)
def test_comments_and_layout_do_not_count(home, text):
    before = digests(home)
    (home / "made_here/records.py").write_bytes(text.encode())
    assert digests(home) == before


def test_unrelated_module_does_not_count(home):
    before = digests(home)
    (home / "made_here/unrelated.py").write_text("LIMIT = 2\n")
    assert digests(home) == before


def test_project_elsewhere_has_the_same_digests(home, tmp_path):
    assert digests(write(tmp_path / "another home", FILES)) == digests(home)


def test_folders_without_init_are_packages(tmp_path):
    files = {
        "made_here/jobs/main.py": "from made_here.jobs import rules\n",
        "made_here/jobs/rules.py": "from ..shared.text import NAME\n",
        "made_here/shared/text.py": "NAME = 1\n",
    }
    code = PipelineCode("made_here.jobs.main:pipeline", str(write(tmp_path / "home", files)))
    assert code_digests(code).keys() == files.keys()


def test_archive_has_the_digests_of_its_project(home, tmp_path):
    archive = tmp_path / "shop.whl"
    with zipfile.ZipFile(archive, "w") as content:
        for name, text in FILES.items():
            content.writestr(name, text)
    empty = tmp_path / "empty home"
    empty.mkdir()
    assert digests(empty, py_files=(str(archive),)) == digests(home)


def test_module_that_breaks_has_changed(home):
    before = digests(home)
    (home / "made_here/rules.py").write_text("def made(:\n")
    assert "made_here/rules.py" in changed(before, digests(home))


def test_code_outside_of_files_has_no_digests(home, monkeypatch):
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    assert code_digests(PipelineCode("made_by_hand:pipeline", str(home))) is None
    assert code_digests(PipelineCode("made_nowhere:pipeline", str(home))) is None


def test_archives_elsewhere_leave_no_digests(home):
    assert digests(home, py_files=("s3://bucket/shop.whl",)) is None


@pytest.mark.parametrize(
    ("name", "before", "now", "text"),
    [
        ("shop/main.py", "a", "b", "shop/main.py has changed"),
        ("shop/main.py", None, "b", "shop/main.py is new"),
        ("shop/main.py", "a", None, "shop/main.py is gone"),
        ("package numpy", "1.0", "2.0", "package numpy is 2.0, and was 1.0"),
        ("package numpy", "1.0", None, "package numpy is gone, and was 1.0"),
    ],
)
def test_difference_is_described(name, before, now, text):
    assert described_difference(name, before, now) == text
