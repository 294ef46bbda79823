"""Target paths name objects; instances of a file's classes unpickle where the file is not loaded."""

import pickle
import subprocess
import sys

import pytest

from stagepipe.core import TargetError, build_target, import_target
from stagepipe.core.imports import import_file


def test_all_spellings_of_a_path_name_the_same_object(folder):
    decode = import_target("./ops.py:decode", folder)
    assert import_target("./ops.py:decode", folder) is decode
    assert import_target(f"{folder}/ops.py:decode") is decode
    assert import_target("os.path.join") is import_target("os.path:join")
    assert import_target("xml.etree.ElementTree.Element").__name__ == "Element"


def test_the_folder_comes_after_the_standard_library(folder):
    (folder / "colorsys.py").write_text("raise RuntimeError\n", encoding="utf-8")
    (folder / "target_ops_beside.py").write_text((folder / "ops.py").read_text(encoding="utf-8"), encoding="utf-8")
    assert import_target("target_ops_beside.decode", folder)(1) == (1, 1)
    assert import_target("colorsys.rgb_to_hsv", folder)


@pytest.mark.parametrize(
    "path,message",
    [
        ("./ops.py:decod", "ops.py has no `decod`; did you mean `decode`?"),
        ("./opps.py:decode", "did you mean `ops.py`?"),
        ("./ops.py", "names a file but no object in it"),
        ("os.pth", "did you mean `path`?"),
        ("no_such_package.name", "no module named `no_such_package`"),
        ("no such", "is not an import path"),
        ("__main__.decode", "the running script itself"),
        ("./broken_target.py:x", "No module named 'surely_not_installed'"),
        ("broken_target.x", "importing `broken_target` failed"),
    ],
)
def test_a_wrong_path_is_named(folder, path, message):
    with pytest.raises(TargetError) as caught:
        import_target(path, folder)
    assert message in str(caught.value)


def test_the_running_script_is_not_imported_again(folder, monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(folder / "script_again.py"), raising=False)
    (folder / "script_again.py").write_text("raise SystemExit\n", encoding="utf-8")
    for path in ("script_again.decode", "./script_again.py:decode"):
        with pytest.raises(TargetError, match="the running script itself"):
            import_target(path, folder)


def test_instances_pickle_to_a_process_that_has_not_loaded_the_file(folder):
    point = build_target("./ops.py:Point", {"x": 4}, folder)
    code = "import sys, pickle; import stagepipe.core.imports; print(pickle.load(sys.stdin.buffer).x)"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(point), capture_output=True, check=False)
    assert (done.stdout, done.stderr) == (b"4\n", b"")
    assert import_file("./ops.py", folder).LOADS == [1]


def test_a_worker_does_not_need_yaml():
    code = "import sys, stagepipe.core.imports; print([m for m in ('yaml', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")
