"""Untrusted documents, read in bounded time and memory: regular files, JSON, YAML."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from gluontune.core.errors import GluontuneError, clean

#: Bytes of a document, and its lists and mappings: larger ones take seconds and hundreds of MiB of memory.
MOST_JSON, MOST_YAML = 16 << 20, 1 << 15
_MOST_GROUPS = 500_000
_MOST_YAML_SIZE = 100_000  # characters and nodes, aliases written out
_DEEPEST = 100
_LONGEST_SCALAR = 400  # characters of a number in YAML, where 1:59:59 is one
_LONGEST_NUMBER = 4300  # digits; Python 3.11 refuses more, and earlier ones take minutes


def explain_os_error(path: str | os.PathLike[str], error: OSError) -> GluontuneError:
    """A :class:`GluontuneError` that explains an ``OSError`` on ``path`` to the user."""
    cures = {
        errno.ENOSPC: "the disk is full: free some space or choose another folder",
        errno.EDQUOT: "your disk quota is used up: free some space or choose another folder",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.EACCES: "permission denied: choose a folder that you may write to",
        errno.EPERM: "permission denied: choose a folder that you may write to",
        errno.ENOENT: "no such file or folder",
        errno.ENOTDIR: "a part of this path is a file, not a folder",
        errno.EISDIR: "this is a folder, not a file",
    }
    reason = cures.get(error.errno or 0, error.strerror or str(error))
    return GluontuneError(f"{os.fspath(path)}: {reason}")


@contextlib.contextmanager
def explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """A context in which an ``OSError`` on ``path`` becomes a :class:`GluontuneError` for the user."""
    try:
        yield
    except OSError as error:
        raise explain_os_error(path, error) from error


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor of a regular file; FIFOs and devices, which may block or never end, are refused.

    Raises an OSError, whose ``strerror`` names a FIFO, device, socket or folder.

    >>> open_regular("/dev/zero")
    Traceback (most recent call last):
    OSError: [Errno 22] a device, not a regular file: '/dev/zero'
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISREG(mode):
            return handle
        kinds = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISDIR, "a folder"), (stat.S_ISSOCK, "a socket"))
        kind = next((name for test, name in kinds if test(mode)), "a device")
        raise OSError(errno.EINVAL, f"{kind}, not a regular file", os.fspath(path))
    except BaseException:
        os.close(handle)
        raise


def leads_up(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a link to ``folder`` or to one of its parents."""
    real, own = os.path.realpath(path), os.path.realpath(folder)
    return own == real or own.startswith(os.path.join(real, ""))


def check_names(names: Iterable[str], where: object) -> None:
    """Refuse class names with control characters, which break files of lines and terminals, or that are not UTF-8.

    >>> check_names(["cat", "caf\\udce9"], "pets")
    Traceback (most recent call last):
    gluontune.errors.GluontuneError: pets: the class name 'caf\\udce9' is not UTF-8: rename it (convmv renames many)
    """
    for name in names:
        if any("\ud800" <= c <= "\udfff" for c in name):
            raise GluontuneError(f"{where}: the class name {name!a} is not UTF-8: rename it (convmv renames many)")
        if not name or any(c < " " or c == "\x7f" for c in name):
            raise GluontuneError(
                f"{where}: the class {clean(name, 80)!r} has a line break or another control character in its name; "
                "rename it"
            )


def read_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """The content of a regular file of at most ``most`` bytes (None: any size); raises an OSError with the reason."""
    with os.fdopen(open_regular(path), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if most is not None and size > most:
            told = f"{size:,} bytes, where a document of this kind has at most {most:,}"
            raise OSError(errno.EFBIG, told, os.fspath(path))
        return stream.read() if most is None else stream.read(most)  # it may be growing


def read_text(path: str | os.PathLike[str], most: int = MOST_JSON) -> str:
    """The text of a document; raises OSError as :func:`read_bytes`, and ValueError if it is no UTF-8."""
    return read_bytes(path, most).decode("utf-8").replace("\r\n", "\n")


def parse_json(text: str | bytes) -> Any:
    """``json.loads`` of an untrusted document.

    Raises a ValueError if it is not JSON, repeats a key, is too large, or is nested more than 100 deep.

    >>> parse_json('{"a": [1]}')
    {'a': [1]}
    >>> parse_json("[" * 5000 + "]" * 5000)
    Traceback (most recent call last):
    ValueError: nested more than 100 deep
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' stands in it twice
    """
    size = f"more than {MOST_JSON >> 20} MiB, or than {_MOST_GROUPS:,} lists and mappings"
    if len(text) > MOST_JSON:
        raise ValueError(size)
    plain = text if isinstance(text, str) else text.decode(json.detect_encoding(text))
    if plain.count("[") + plain.count("{") > _MOST_GROUPS:
        raise ValueError(size)
    try:
        document = _decoder.decode(plain)
    except RecursionError:
        raise ValueError(f"nested more than {_DEEPEST} deep") from None
    level: list[Any] = [[document]]
    for _ in range(_DEEPEST + 1):
        inside = itertools.chain(*(group.values() if isinstance(group, dict) else group for group in level))
        level = [inner for inner in inside if isinstance(inner, (dict, list))]
        if not level:
            return document
    raise ValueError(f"nested more than {_DEEPEST} deep")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {clean(key, 80)!r} stands in it twice")
        found[key] = value
    return found


def _number(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits):,} digits")
    return int(digits)


@contextlib.contextmanager
def understood(path: object) -> Iterator[None]:
    """A context for reading values of a document: a missing or wrong one raises a GluontuneError with its name.

    >>> with understood("a.json"):
    ...     {}["step"]
    Traceback (most recent call last):
    gluontune.errors.GluontuneError: a.json: altered, or of another version of gluontune (KeyError: 'step')
    """
    try:
        yield
    except GluontuneError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise GluontuneError(
            f"{path}: altered, or of another version of gluontune ({type(error).__name__}: {clean(error, 200)})"
        ) from error


_decoder = json.JSONDecoder(object_pairs_hook=_once, parse_int=_number)


def read_json(path: str | os.PathLike[str]) -> Any:
    """The JSON document in a file; raises a GluontuneError that names the path."""
    try:
        with explained(path):
            return parse_json(read_text(path))
    except ValueError as error:
        raise GluontuneError(f"{path}: not valid JSON ({error}); was its writing cut off?") from error


def parse_yaml(text: str) -> Any:
    """The numbers, texts, lists and mappings of untrusted YAML text. 1e-3 is a number, as in YAML 1.2.

    Raises a ValueError if it is not YAML, repeats a key, contains itself, or is too large with its aliases written out.

    >>> parse_yaml("{learning_rate: 1e-3, epochs: 3}")
    {'learning_rate': 0.001, 'epochs': 3}
    >>> parse_yaml("{epochs: 1, epochs: 3}")
    Traceback (most recent call last):
    ValueError: the key 'epochs' stands in it twice
    """
    import yaml

    if len(text) > MOST_YAML:
        raise ValueError(f"{len(text):,} characters, where a document of this kind has at most {MOST_YAML:,}")
    loader = None
    try:
        loader = _loader()(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _weigh(node, {}, 0)
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError(f"nested more than {_DEEPEST} deep") from None
    except yaml.YAMLError as error:
        raise ValueError(clean(error, 300)) from error
    except (TypeError, AttributeError, KeyError, IndexError, OverflowError) as error:  # PyYAML's own, on odd tags
        raise ValueError(f"{type(error).__name__}: {clean(error, 300)}") from error
    finally:
        if loader is not None:
            loader.dispose()


def _weigh(node: Any, known: dict[int, int], depth: int) -> int:
    """The size of a node with all its aliases written out, since nested aliases can be a bomb."""
    if id(node) in known:
        if known[id(node)] < 0:
            raise ValueError("a list or mapping in it holds itself")
        return known[id(node)]
    if depth > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} deep")
    known[id(node)] = -1
    size = 1
    if isinstance(node.value, str):
        size += len(node.value)
        if size > _LONGEST_SCALAR and node.tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
            raise ValueError(f"a number of {size - 1:,} characters")
    elif node.id == "mapping":
        keys = [key.value for key, _ in node.value if key.id == "scalar" and key.tag != "tag:yaml.org,2002:merge"]
        _once([(key, None) for key in keys])
        size += sum(_weigh(inner, known, depth + 1) for pair in node.value for inner in pair)
    else:
        size += sum(_weigh(inner, known, depth + 1) for inner in node.value)
    if size > _MOST_YAML_SIZE:
        raise ValueError(f"more than {_MOST_YAML_SIZE:,} characters once its aliases are written out")
    known[id(node)] = size
    return size


@functools.cache
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML in which 1e-3 is a number, as in JSON and YAML 1.2; PyYAML alone calls it a text."""

    Loader.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(?:\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
    return Loader
