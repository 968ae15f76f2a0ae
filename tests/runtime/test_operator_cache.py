"""MXNet's functions from the cache are those that MXNet makes; and where there is no cache, it makes them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gluontune.runtime import import_hooks
from gluontune.runtime.import_hooks import _entry_of, _place, _read, _write, kept_operators

# All functions that were made from a string, without the handle, which is another one in each process.
CODE = """
import contextlib, hashlib, inspect, json, sys
compiled = []
sys.addaudithook(lambda event, args: event == "compile" and args[1] == "<string>" and compiled.append(1))
from gluontune.runtime import importing
if "plain" in sys.argv:
    importing.kept_operators = lambda library: contextlib.nullcontext()
mx = importing.mxnet()
count = len(compiled)
found = {}
for module in sorted(name for name in sys.modules if name.split(".")[0] == "mxnet"):
    for name, function in sorted(vars(sys.modules[module]).items()):
        code = getattr(function, "__code__", None)
        if code is not None and code.co_filename == "<string>":
            constants = [0 if type(c) is int and c > 1 << 20 else c for c in code.co_consts[1:]]
            found[f"{module}.{name}"] = [
                function.__name__, function.__qualname__, function.__module__, str(inspect.signature(function)),
                hashlib.sha256(function.__doc__.encode()).hexdigest(), code.co_code.hex(), repr(constants),
                repr((code.co_names, code.co_varnames, code.co_flags, code.co_argcount)),
            ]
x = mx.nd.array([[1.0, -2.0, 3.0]])
net = mx.sym.softmax(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, name="f"))
print(json.dumps({
    "compiled": count, "found": found,
    "values": [float(mx.nd.relu(x).sum().asscalar()), mx.nd.concat(x, x, dim=0).shape[0],
               float(mx.np.exp(mx.np.zeros(2)).sum()), net.list_arguments(),
               json.loads(net.tojson())["nodes"][-1]["op"]],
}))
"""


def start(cache: Path, *arguments: str) -> dict:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, *arguments],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kept(cache: Path) -> Path:
    (path,) = (cache / "gluontune" / "native").glob("operators-*.bin")
    return path


@pytest.fixture(scope="module")
def starts(tmp_path_factory):
    """Without the cache, with an empty one, and from it."""
    cache = tmp_path_factory.mktemp("cache")
    plain = start(cache, "plain")
    assert not (cache / "gluontune").exists()
    return cache, plain, start(cache), start(cache)


def test_the_functions_are_the_same(starts):
    _, plain, first, second = starts
    assert len(plain["found"]) > 2500 and any(name.startswith("mxnet.symbol.numpy.") for name in plain["found"])
    assert first["found"] == plain["found"] and second["found"] == plain["found"]
    assert first["values"] == second["values"] == plain["values"]
    assert plain["values"] == [4.0, 2, 2.0, ["data", "f_weight", "f_bias"], "softmax"]
    assert plain["compiled"] > 2400 and first["compiled"] > 2000 and second["compiled"] < 400


def test_the_file_is_the_users_own_and_is_written_once(starts):
    cache = starts[0]
    path = kept(cache)
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700
    before = path.stat().st_mtime_ns
    start(cache)
    assert path.stat().st_mtime_ns == before and len(_read(path)) > 2000


@pytest.mark.parametrize("damage", ["cut off", "a byte", "empty", "written by all"])
def test_a_file_that_is_not_whole_or_not_ours_is_made_anew(starts, tmp_path, damage):
    data = bytearray(kept(starts[0]).read_bytes())
    path = tmp_path / "native" / "operators-1.bin"
    path.parent.mkdir(mode=0o700)
    data = {"cut off": data[:-1], "empty": b""}.get(damage, data)
    if damage == "a byte":
        data[len(data) // 2] ^= 1
    path.write_bytes(data)
    path.chmod(0o666 if damage == "written by all" else 0o600)
    assert _read(path) == {}
    _write(path, {("home", "name", "name"): ((lambda: 0).__code__, 0, "doc", None)})
    assert list(_read(path)) == [("home", "name", "name")] and path.stat().st_mode & 0o777 == 0o600


def test_a_cache_that_cannot_be_written_is_done_without(starts, tmp_path):
    (tmp_path / "gluontune").write_text("a file, no folder")
    found = start(tmp_path)
    assert found["found"] == starts[1]["found"] and found["compiled"] > 2000


def test_another_build_has_another_file(tmp_path):
    library = tmp_path / "libmxnet.so"
    library.write_bytes(b"1")
    first = _place(library)
    os.utime(library, (1, 1))
    assert _place(library) != first
    assert _place(tmp_path / "gone.so") is None
    before = list(sys.meta_path)
    with kept_operators(None):
        assert sys.meta_path == before
    with kept_operators(library), pytest.raises(ZeroDivisionError):
        operators = sys.meta_path[0]._wrap(None)._patch.__self__
        assert len(sys.meta_path) == len(before) + 1 and operators.is_open
        _ = 1 / 0
    assert sys.meta_path == before and not first.exists() and not operators.is_open


NULL = object()


def _made(text: str):
    found: dict = {"_Null": NULL}
    exec(text, found)
    return found["f"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(a, b=None, *, c=1): return 1234567",
        "def f(a, b=3): return 1234567",
        "def f(a): return 7654321",
        "def f(a):\n    return g(1234567, lambda: 1234567)",
        "def g(x):\n    def h(): return x, 1234567\n    return h\nf = g(1)",
    ],
)
def test_what_is_not_of_the_usual_kind_is_not_kept(text):
    usual = _entry_of(_made("def f(a=None, b=_Null):\n    '''doc'''\n    return 1234567"), 1234567, NULL)
    assert usual is not None and usual[2:] == ("doc", (False, True))
    assert usual[0].co_consts[usual[1]] == 0 and "doc" not in usual[0].co_consts
    if "lambda" in text:  # its own handle stands among its own constants once
        assert _entry_of(_made(text), 1234567, NULL) is not None
    else:
        assert _entry_of(_made(text), 1234567, NULL) is None


def test_operators_of_a_library_that_is_loaded_later_are_not_taken_from_it():
    operators = import_hooks._Operators({})
    operators.is_open = False
    assert operators.maker(_made) is _made
