"""The README's two commands on a fresh machine: ``make fresh`` (root; mmdebstrap).

A minimal Debian 12 (make, python3, python3-venv, ca-certificates: no compiler, no OpenMP library), an ordinary user, a
folder with a space and an umlaut, 64 MB of shared memory, and a clean clone of HEAD. This machine's settings of pip
come along. Parts, each in a root of its own:

* ``first``: ``make ladder`` and ``make test``; all nine rungs must have been measured.
* ``offline``: set-up from a folder of wheels without any network, and one epoch.
* ``py312``: set-up on Python 3.12, and one epoch.
* ``alone``: set-up without PyTorch, and one epoch.
* ``small``: set-up and one epoch, for CI. It also fills the folder of wheels where no part before ``offline`` has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SUITE, PACKAGES = "bookworm", "make,python3,python3-venv,ca-certificates,mount"
HOME, FOLDER = "/home/learner", "mein Ordner ü/gluontune"
ONE_EPOCH = "make setup && .venv/bin/gluontune train --dataset sample --epochs 1 --json"
WHEEL = (
    ".venv/bin/python -m pip wheel -q -w /wheels -r /wheels/list.txt hatchling editables"  # what builds gluontune, too
)
WHEELS = (
    ".venv/bin/python -m pip list --format freeze --exclude-editable >/wheels/list.txt && "
    f"{{ {WHEEL} || {WHEEL} --extra-index-url https://download.pytorch.org/whl/cpu; }}"
)
PARTS = {
    "first": ("make ladder && make test", {}),
    "offline": (ONE_EPOCH, {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/wheels"}),
    "py312": (ONE_EPOCH, {}),
    "alone": (f"export TORCH=none; {ONE_EPOCH}", {}),
    "small": (ONE_EPOCH, {}),
}
FILL = ("first", "small")  # parts whose packages are those that the set-up asks for by itself
# In a mount and process namespace of its own: what is mounted is gone with it.
ENTER = """
set -e; root=$1; shift
mount --make-rprivate /; mount --bind "$root" "$root"
mount -t proc proc "$root/proc"; mount --rbind /dev "$root/dev"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$root/dev/shm"
while [ "$1" != -- ]; do mkdir -p "$root$2"; mount --bind "$1" "$root$2"; shift 2; done; shift
cd "$root"; mkdir -p .before; pivot_root . .before  # a chroot could have no user namespaces
umount -l /.before; exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"
"""


def base(cache: Path) -> Path:
    """The root's tar file, made when there is none or it is older than a month."""
    tar = cache / f"{SUITE}.tar"
    if not tar.exists() or time.time() - tar.stat().st_mtime > 30 * 86400:
        making = cache / f"{SUITE}.making.tar"
        subprocess.run(["mmdebstrap", "-q", "--variant=apt", f"--include={PACKAGES}", SUITE, str(making)], check=True)
        making.rename(tar)
    return tar


def pip_settings() -> tuple[dict[str, str], list[str], list[str]]:
    """pip's settings on this machine as variables, and the folders and the files that they name."""
    said = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    found = re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", said, re.M)
    settings = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in found}
    if "file:" in settings.get("PIP_EXTRA_INDEX_URL", ""):  # links that lead anywhere
        del settings["PIP_EXTRA_INDEX_URL"]
    words = sorted({*" ".join(settings.values()).replace("file://", "").split()})
    places = [word for word in words if word.startswith("/")]
    return settings, [p for p in places if Path(p).is_dir()], [p for p in places if Path(p).is_file()]


def run(part: str, tar: Path, cache: Path, wheels: Path, log: Path, pack: bool) -> dict[str, object]:
    """One part in a fresh root; its output goes to ``log``. ``pack``: fill ``wheels``, for the part offline."""
    command, more = PARTS[part]
    settings, folders, files = pip_settings()
    for name in ("pip", "wheels"):
        (cache / name).mkdir(exist_ok=True)
        os.chown(cache / name, 1000, 1000)
    binds = [*((place, place) for place in folders), (str(cache / "pip"), "/var/cache/pip")]
    binds.append((str(wheels), "/wheels"))
    path = "/usr/local/bin:/usr/bin:/bin"
    if part == "py312":
        binds.append((python312(), "/opt/python3.12"))
        path = f"/opt/python3.12/bin:{path}"
    elif part == "offline":
        settings = {}
    env = {"HOME": HOME, "USER": "learner", "LANG": "C.UTF-8", "PATH": path, **settings, **more}
    bundle = "/etc/ssl/certs/ca-certificates.crt"
    env.update(PIP_CACHE_DIR="/var/cache/pip", PIP_CERT=bundle, SSL_CERT_FILE=bundle)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gluontune-fresh-", dir=cache) as root:
        subprocess.run(["tar", "-xf", str(tar), "-C", root, "--exclude=./dev/*"], check=True)
        for name in {"/etc/resolv.conf", "/etc/hosts", "/etc/ssl/certs/ca-certificates.crt", *files}:
            Path(root + name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, root + name)
        subprocess.run(["chroot", root, "useradd", "-m", "-u", "1000", "learner"], check=True)
        project = Path(f"{root}{HOME}/{FOLDER}")
        subprocess.run(["git", "clone", "-q", str(Path(__file__).resolve().parents[2]), str(project)], check=True)
        subprocess.run(["chown", "-R", "1000:1000", root + HOME], check=True)
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *(["--net"] * (part == "offline"))]
        words += ["bash", "-c", ENTER, "enter", root, *(word for pair in binds for word in pair), "--"]
        words += ["/usr/bin/env", "-i", *(f"{name}={value}" for name, value in env.items())]
        inside = f"cd {shlex.quote(f'{HOME}/{FOLDER}')} && {{ {command}; }}"
        if pack and not any(wheels.iterdir()):
            inside += f"; code=$?; {WHEELS} || code=1; exit $code"
        with open(log, "wb") as stream:
            code = subprocess.run([*words, "bash", "-c", inside], stdout=stream, stderr=subprocess.STDOUT).returncode
        ladder = project / "ladder-out/ladder.json"
        rungs = json.loads(ladder.read_text())["rungs"] if ladder.exists() else []
    if part == "first" and not code:
        code = int(len(rungs) < 9 or any(rung["status"] != "ran" for rung in rungs))
    tests = re.findall(r"^(?:\d+ \w+, )*\d+ \w+ in [\d.]+s.*$", log.read_text(errors="replace"), re.M)
    seconds = round(time.monotonic() - began)
    said = [f"{rung['name']}: {rung['status']}" for rung in rungs if rung["status"] != "ran"] + tests
    return {"part": part, "green": code == 0, "seconds": seconds, "said": said}


def in_order(parts: list[str]) -> list[str]:
    """``parts``, with one that fills the folder of wheels before ``offline``."""
    if "offline" not in parts or any(part in FILL for part in parts[: parts.index("offline")]):
        return parts
    return ["small", *parts]


def python312() -> str:
    """The folder of a Python 3.12 of this machine."""
    tries = [*Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/3.12.*/bin/python3")]
    found = next((str(p) for p in tries), None) or shutil.which("python3.12")
    if found is None:
        raise SystemExit("fresh: the part py312 wants a Python 3.12 on this machine")
    return str(Path(found).resolve().parents[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["first", "offline", "py312", "alone"], metavar="PART")
    parser.add_argument("--cache", type=Path, default=Path("/var/tmp/gluontune-fresh"))
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        parser.error("it needs root and mmdebstrap (Debian, Ubuntu: apt install mmdebstrap)")
    given.cache.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the roots are taken away
    tar, rows = base(given.cache), []
    with tempfile.TemporaryDirectory(prefix="wheels-", dir=given.cache) as wheels:
        os.chown(wheels, 1000, 1000)
        for part in in_order(given.parts):
            log = given.cache / f"{part}.log"
            rows.append(run(part, tar, given.cache, Path(wheels), log, "offline" in given.parts and part in FILL))
            print(json.dumps(rows[-1]), flush=True)
            if not rows[-1]["green"]:
                print("".join(log.read_text(errors="replace").splitlines(True)[-60:]), file=sys.stderr)
    return int(not all(row["green"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
