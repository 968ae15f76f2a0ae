"""Modules that run when they are first used: their own, whole, once, for all threads."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
import time

import pytest

from gluontune.runtime.import_hooks import lazily


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package ``slow_one`` that notes when it runs, with a submodule; forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "slow_one"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import builtins, time\nfirst = 1\nbuiltins.slow_one_ran = getattr(builtins, 'slow_one_ran', 0) + 1\n"
        "time.sleep(0.2)\nlast = __name__ + __spec__.name\n"
    )
    (folder / "part.py").write_text("from slow_one import last\nvalue = last + '!'\n")
    monkeypatch.setattr("builtins.slow_one_ran", 0, raising=False)

    def times():
        return sys.modules["builtins"].slow_one_ran

    yield times
    for name in ("slow_one", "slow_one.part"):
        sys.modules.pop(name, None)


def load():
    with lazily("slow_one"):
        return importlib.import_module("slow_one")


def test_it_runs_when_something_is_asked_for(package):
    module = load()
    assert importlib.import_module("slow_one") is module and package() == 0  # imported again: still not
    assert module.__name__ == "slow_one" and package() == 0
    assert module.last == "slow_oneslow_one" and package() == 1
    assert module.first == 1 and package() == 1 and type(module) is type(sys)
    assert importlib.import_module("slow_one") is module
    with pytest.raises(AttributeError, match="'slow_one' has no attribute 'nothing'"):
        _ = module.nothing


def test_a_submodule_that_the_package_imports_itself_runs_once(package, tmp_path):
    """A user's ``except requests.exceptions.X`` has to catch what requests raises."""
    inner = "import builtins\nbuiltins.slow_one_ran += 10\nclass Error(Exception):\n    pass\n"
    (tmp_path / "slow_one" / "inner.py").write_text(inner)
    with (tmp_path / "slow_one" / "__init__.py").open("a") as file:
        file.write("from slow_one.inner import Error\n")
    load()
    module = importlib.import_module("slow_one.inner")
    try:
        assert module.Error is sys.modules["slow_one"].Error and package() == 11
        assert sys.modules["slow_one"].inner is module and module.__spec__.loader.get_source("slow_one.inner") == inner
        assert importlib.reload(module).Error is not sys.modules["slow_one"].Error and package() == 21
    finally:
        del sys.modules["slow_one.inner"]


def test_a_submodule_and_a_listing_run_it_first(package):
    load()
    assert importlib.import_module("slow_one.part").value == "slow_oneslow_one!" and package() == 1
    for name in ("slow_one", "slow_one.part"):
        del sys.modules[name]
    module = load()
    assert package() == 1 and {"first", "last"} <= set(dir(module)) and package() == 2
    with pytest.raises(AttributeError, match="nothing"):
        _ = module.nothing


def test_threads_wait_for_all_of_it(package):
    module, found = load(), []
    threads = [threading.Thread(target=lambda: found.append(module.last)) for _ in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)  # while the first one runs it
    for thread in threads:
        thread.join()
    assert found == ["slow_oneslow_one"] * 4 and package() == 1


def test_what_is_there_stays_and_what_is_missing_is_missing(package):
    before = list(sys.meta_path)
    module = importlib.import_module("slow_one")
    assert load() is module and package() == 1
    with lazily("no_such_module"), pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("no_such_module")
    assert sys.meta_path == before
    importlib.import_module("colorsys")
    assert package() == 1


def test_mxnet_leaves_scipy_for_later_and_it_is_there_when_it_is_wanted():
    code = (
        "import sys, gluontune as gt; mx = gt.runtime.mxnet()\n"
        "assert not {'scipy.stats._stats_py', 'scipy.sparse._csr'} & set(sys.modules)\n"
        "import scipy.sparse, scipy.stats\n"
        "matrix = mx.nd.sparse.csr_matrix(scipy.sparse.eye(3).tocsr())\n"
        "assert matrix.asnumpy().sum() == 3 and mx.contrib.quantization.stats.norm.cdf(0) == 0.5\n"
        "from scipy.stats import binomtest; assert binomtest(1, 2).pvalue == 1\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_mxnet_leaves_its_test_helpers_texts_and_onnx_for_later_and_distutils_to_setuptools():
    code = (
        "import sys, gluontune as gt; mx = gt.runtime.mxnet()\n"
        "early = {'requests.api', 'onnx', 'setuptools', 'distutils', 'distutils.version'} & set(sys.modules)\n"
        "assert not early, early\n"
        "assert callable(mx.onnx.export_model) and callable(mx.contrib.onnx.import_model) and 'onnx' in sys.modules\n"
        "assert mx.contrib.text.vocab.Vocabulary and mx.test_utils.same(mx.nd.ones(2).asnumpy(), mx.np.ones(2))\n"
        "import requests.adapters; assert requests.Session().adapters and 'requests.api' in sys.modules\n"
        "import setuptools, distutils.version\n"
        "assert sys.version_info >= (3, 12) or 'setuptools' in distutils.version.__file__\n"
    )
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
