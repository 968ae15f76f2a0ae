"""Launch settings: worked out for the machine, given to children, taken away again, put into a kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st
from runtime_fakes import make_system, topology, with_gpu

import gluontune as gt
from gluontune.core.errors import GluontuneError, UsageError
from gluontune.runtime import launch
from gluontune.runtime.launch import MARKER, applied, bind_to_cpus, child_env, cpus_for_rank, launch_settings

CLEAN = {"OMP_NUM_THREADS": None, "MALLOC_TRIM_THRESHOLD_": None, "MALLOC_MMAP_MAX_": None, "MALLOC_TOP_PAD_": None}
GLIBC = {"MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": "268435456"}


def test_the_preset_for_four_cores(tmp_path):
    found = launch_settings(system=make_system(tmp_path))
    assert found.env["OMP_NUM_THREADS"] == "4"
    assert GLIBC.items() <= found.env.items()
    assert found.cpus == ()
    assert found.env["GOMP_SPINCOUNT"] == "10000"
    assert all(row.why for row in found.rows) and [r.name for r in found.rows] == list(found.env)


@pytest.mark.parametrize(("processes", "threads"), [(1, "4"), (2, "2"), (3, "1"), (4, "1"), (9, "1")])
def test_threads_are_shared_out(tmp_path, processes, threads):
    found = launch_settings(processes, system=make_system(tmp_path))
    assert found.env["OMP_NUM_THREADS"] == threads
    assert len(found.cpus) == (processes if processes > 1 else 0)


def test_quota_and_hyperthreads_lower_the_threads(tmp_path):
    quota = make_system(tmp_path / "a", files={"/sys/fs/cgroup/cpu.max": "200000 100000\n"})
    assert launch_settings(system=quota).env["OMP_NUM_THREADS"] == "2"
    smt = make_system(tmp_path / "b", files=topology(8, threads=2), affinity=lambda: list(range(8)))
    assert launch_settings(system=smt).env["OMP_NUM_THREADS"] == "4"
    assert launch_settings(cores=6, system=smt).env["OMP_NUM_THREADS"] == "6"


def test_a_wait_policy_of_the_users_own_is_kept(tmp_path):
    system = make_system(tmp_path, environ={"OMP_WAIT_POLICY": "passive"})
    assert "GOMP_SPINCOUNT" not in launch_settings(system=system).env


def test_allocators(tmp_path):
    here = make_system(tmp_path, find_library=lambda *names: names[0])
    env = launch_settings(allocator="tcmalloc", system=here).env
    assert env["LD_PRELOAD"] == "libtcmalloc_minimal.so.4" and not GLIBC.keys() & env.keys()
    here.environ = {"LD_PRELOAD": "/opt/other.so"}
    assert launch_settings(allocator="jemalloc", system=here).env["LD_PRELOAD"] == "libjemalloc.so.2:/opt/other.so"
    assert not GLIBC.keys() & launch_settings(allocator="none", system=here).env.keys()
    assert GLIBC.keys() < launch_settings(allocator="auto", system=here).env.keys()
    here.environ = {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"}
    assert not GLIBC.keys() & launch_settings(allocator="auto", system=here).env.keys()
    here.libc = ("", "")
    here.environ = {}
    assert not GLIBC.keys() & launch_settings(allocator="auto", system=here).env.keys()


def test_what_cannot_be_is_refused(tmp_path):
    system = make_system(tmp_path)
    with pytest.raises(GluontuneError, match="apt install libtcmalloc-minimal4"):
        launch_settings(allocator="tcmalloc", system=system)
    with pytest.raises(UsageError, match="allocator='hoard'"):
        launch_settings(allocator="hoard", system=system)
    with pytest.raises(UsageError, match="processes=0"):
        launch_settings(0, system=system)
    with pytest.raises(UsageError, match="cores=-1"):
        launch_settings(cores=-1, system=system)
    with pytest.raises(UsageError, match="rank=2, processes=2"):
        cpus_for_rank(2, 2, system=system)
    with pytest.raises(UsageError, match="runtime='fast'"):
        child_env("fast", system=system)


@settings(max_examples=40, deadline=None)
@given(
    cores=st.integers(1, 12),
    threads=st.sampled_from([1, 2]),
    packages=st.sampled_from([1, 2]),
    processes=st.integers(1, 14),
    lost=st.sets(st.integers(0, 23), max_size=8),
)
def test_ranks_get_whole_cores_and_all_of_them(tmp_path_factory, cores, threads, packages, processes, lost):
    cpus = cores * threads
    allowed = sorted(set(range(cpus)) - lost) or [0]
    root = tmp_path_factory.mktemp("machine")
    system = make_system(root, files=topology(cpus, threads, packages), affinity=lambda: allowed)
    lists = [cpus_for_rank(rank, processes, system=system) for rank in range(processes)]
    assert all(lists), "no rank goes without a CPU"
    assert sorted({cpu for one in lists for cpu in one}) == allowed
    held = {cpu % cores for cpu in allowed}
    if processes <= len(held):
        assert sum(map(len, lists)) == len(allowed), "no CPU is given twice"
        owners = [{rank for rank, one in enumerate(lists) for cpu in one if cpu % cores == core} for core in held]
        assert all(len(ranks) == 1 for ranks in owners), "hyper-threads of a core stay together"


def test_child_environments(tmp_path):
    system = make_system(tmp_path)
    mine = {"PATH": "/bin", "OMP_NUM_THREADS": "3"}
    assert child_env("as-installed", environ=mine) == mine
    assert child_env("as-installed", {"A": "1"}, environ=mine) == {**mine, "A": "1"}
    tuned = child_env("tuned", {"MALLOC_MMAP_MAX_": "7"}, processes=2, environ=mine, system=system)
    assert tuned["OMP_NUM_THREADS"] == "2" and tuned["PATH"] == "/bin"
    assert tuned["MALLOC_MMAP_MAX_"] == "7", "the recipe's own variables win"
    differing = applied(tuned, mine)
    assert differing["OMP_NUM_THREADS"] == "2" and "PATH" not in differing and MARKER not in differing
    assert mine == {"PATH": "/bin", "OMP_NUM_THREADS": "3"}, "the caller's own is not touched"


def test_as_installed_inside_a_tuned_process_or_our_kernel_is_as_installed(tmp_path):
    system = make_system(tmp_path)
    tuned = child_env("tuned", environ={"PATH": "/bin"}, system=system)
    assert child_env("as-installed", environ=tuned) == {"PATH": "/bin"}
    assert applied(tuned, tuned) == {n: v for n, v in tuned.items() if n not in ("PATH", MARKER)}
    assert child_env("tuned", environ=tuned, system=system) == tuned
    in_kernel = {"PATH": "/bin", **launch.kernel_env(system)}
    assert child_env("as-installed", environ=in_kernel) == {"PATH": "/bin"}


def test_a_child_process_has_them():
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    env = child_env("tuned", {"MINE": "ü=1"})
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert launch_settings().env.items() <= seen.items() and seen["MINE"] == "ü=1"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="wants a system that binds processes to cores")
def test_binding_holds_in_the_process():
    cpu = min(os.sched_getaffinity(0))
    code = (
        "import os; from gluontune.runtime import bind_to_cpus, usable_cores;"
        f"bind_to_cpus(({cpu},)); print(sorted(os.sched_getaffinity(0)), usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"[{cpu}] 1"
    before = os.sched_getaffinity(0)
    bind_to_cpus(())
    assert os.sched_getaffinity(0) == before


# -- the Jupyter kernel


def test_kernel_specification(tmp_path):
    system = make_system(tmp_path)
    folder = launch.install_kernel(prefix=tmp_path / "p", system=system)
    assert folder == tmp_path / "p" / "share" / "jupyter" / "kernels" / "gluontune"
    spec = json.loads((folder / "kernel.json").read_text())
    assert spec["argv"][0] == sys.executable and "{connection_file}" in spec["argv"]
    assert spec["env"]["OMP_NUM_THREADS"] == "4" and "LD_LIBRARY_PATH" not in spec["env"]


def test_kernel_of_a_gpu_environment_leads_to_pips_libraries(tmp_path, monkeypatch):
    place = tmp_path / "site" / "nvidia" / "cudnn" / "lib"
    place.mkdir(parents=True)
    (place / "libcudnn.so.8").write_bytes(b"")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    env = launch.kernel_env(make_system(tmp_path, **with_gpu()))
    assert env["LD_LIBRARY_PATH"].split(":")[0] == str(place)


def test_kernel_that_cannot_be_installed(tmp_path):
    system = make_system(tmp_path, module_exists=lambda name: name != "ipykernel")
    with pytest.raises(GluontuneError, match=r"gluontune\[notebooks\]"):
        launch.install_kernel(prefix=tmp_path, system=system)
    with pytest.raises(UsageError, match=r"kernel name '\.\./x'"):
        launch.install_kernel("../x", prefix=tmp_path, system=system)
    (tmp_path / "file").write_text("")
    with pytest.raises(GluontuneError, match="file"):
        launch.install_kernel(prefix=tmp_path / "file", system=make_system(tmp_path))


def test_jupyter_starts_the_kernel_with_the_settings(tmp_path, monkeypatch):
    manager = pytest.importorskip(
        "jupyter_client.manager", reason="wants the extra 'notebooks' (pip install '.[notebooks]')"
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "share" / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    gt.runtime.install_kernel("gluontune-test", prefix=tmp_path)
    running, client = manager.start_new_kernel(kernel_name="gluontune-test", startup_timeout=60)
    said = []
    try:
        client.execute_interactive(
            "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['MALLOC_MMAP_MAX_'])",
            timeout=60,
            output_hook=lambda message: said.append(message["content"].get("text", "")),
        )
    finally:
        client.stop_channels()
        running.shutdown_kernel(now=True)
    assert "".join(said).split() == [launch_settings().env["OMP_NUM_THREADS"], "0"]
