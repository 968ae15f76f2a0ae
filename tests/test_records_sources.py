"""What is listed to be packed: folders, lists and tables of every odd kind, and archives."""

from __future__ import annotations

import os

import pytest
from tar_files import write_tar

from gluontune.errors import GluontuneError, UsageError
from gluontune.records.sources import EXTENSIONS, Item, Source, read_source, split_shards
from gluontune.records.tarshards import is_tar, place_of, read_member


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def listed(src, **options):
    source = read_source(src, **{"shuffle": False, **options})
    return [(item.key, item.label, os.path.relpath(item.path, src.parent)) for item in source.items]


def test_a_folder_is_a_class_and_what_is_hidden_is_none(tmp_path):
    names = [f"cat/{k}{suffix}" for k, suffix in enumerate(sorted(EXTENSIONS))]
    src = touch(
        tmp_path / "src", *names, "dog/UP.JPG", "dog/a/b.tar.png", "dog/notes.txt", "dog/.hidden.jpg", "dog/.git/x.jpg",
        ".cache/x.jpg", "eel/readme", "top.jpg", "dog/.jpg", "dog/jpg",
    )  # fmt: skip
    source = read_source(src, shuffle=False)
    assert source.classes == ["cat", "dog"] and source.kind == "folder"
    wanted = [(0.0, name) for name in sorted(names)] + [(1.0, "dog/UP.JPG"), (1.0, "dog/a/b.tar.png")]
    assert listed(src) == [(k, label, f"src/{name}") for k, (label, name) in enumerate(wanted)]


def test_a_folder_without_classes_says_why(tmp_path):
    with pytest.raises(GluontuneError, match="no class folder with images in it"):
        read_source(touch(tmp_path / "a", "x/readme"))
    with pytest.raises(GluontuneError, match="its images lie in no class folder"):
        read_source(touch(tmp_path / "b", "1.JPG"))


def write(path, text, encoding="utf-8"):
    path.write_bytes(text.encode(encoding))
    return path


def test_a_list_in_its_own_order(tmp_path):
    src = write(tmp_path / "a.lst", "9223372036854775807\t1\tb.jpg\n\n  \n0\t2.5\t3\tsub/a b.jpg\r\n5\t-1\t/abs.jpg")
    assert [tuple(item) for item in read_source(src).items] == [
        ((1 << 63) - 1, 1.0, str(tmp_path / "b.jpg")),
        (0, (2.5, 3.0), str(tmp_path / "sub/a b.jpg")),
        (5, -1.0, "/abs.jpg"),
    ]
    assert read_source(src).classes is None and read_source(src).kind == "list"
    assert [item.key for item in read_source(src, shuffle=True, seed=1).items] != [(1 << 63) - 1, 0, 5]
    assert read_source(src, root=tmp_path / "other").items[0].path == str(tmp_path / "other" / "b.jpg")
    assert read_source(write(tmp_path / "B.LST", "1\t1\tb.jpg\n")).items[0].key == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-1\t0\ta.jpg", "line 2: the key -1 is out of range; keys are unique and at least 0"),
        ("9223372036854775808\t0\ta.jpg", "line 2: the key 9223372036854775808 is out of range"),
        ("7\t0\ta.jpg", "line 2: the key 7 is used twice"),
        ("x\t0\ta.jpg", "line 2: the key 'x' is not a whole number"),
        ("8\ta.jpg", "line 2 is not 'key<TAB>label…<TAB>path': '8"),
        ("8\t1\tinf\ta.jpg", "line 2: label inf: a label must be a finite number"),
        ("8\t1\tmany\ta.jpg", "line 2: the label 'many' is not a number"),
    ],
)
def test_a_line_of_a_list_that_cannot_be_is_named(tmp_path, line, words):
    src = write(tmp_path / "a.lst", f"7\t1\tb.jpg\n{line}\n")
    with pytest.raises(GluontuneError) as told:
        read_source(src)
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("text", "rows", "classes"),
    [
        ("path,label\na.jpg,3\n", [(3.0, "a.jpg")], None),
        ("label;path\n3;a,b.jpg\n", [(3.0, "a,b.jpg")], None),
        ("x\tfile\ty\n1\ta.jpg\t2\n", [((1.0, 2.0), "a.jpg")], None),
        ("name,image,label\nn,a.jpg,1\n", [], "line 2: the label 'n' is not a number"),  # image comes before name
        ("File , kind\n a.jpg , cat \nb.jpg,ant\n", [(1.0, "a.jpg"), (0.0, "b.jpg")], ["ant", "cat"]),
        ("where,kind\na.jpg,1\nb.jpg,b\n", [(0.0, "a.jpg"), (1.0, "b.jpg")], ["1", "b"]),
        ("where,n\na.jpg,1\n\n ,  \nb.jpg,2\n", [(1.0, "a.jpg"), (2.0, "b.jpg")], None),
        ("path,n\na.jpg,1\n,2\n", [(1.0, "a.jpg"), (2.0, "")], None),
        ("path,n\nb.jpg,x\na.jpg,\n", [], "line 3: the label is empty"),
        ("path,a,b\na.jpg,1,2\nb.jpg,1\n", [], "line 3 has 2 fields, the header 3"),
        ("path\na.jpg\n", [], "the table has no label column beside 'path'"),
        ("", [], "the table is empty"),
        ("path,n\n", [], "no images in it"),
    ],
)
def test_tables(tmp_path, text, rows, classes):
    for encoding in ("utf-8", "utf-8-sig"):
        src = write(tmp_path / "t.csv", text, encoding)
        if isinstance(classes, str):
            with pytest.raises(GluontuneError, match=classes):
                read_source(src)
            continue
        source = read_source(src, shuffle=False)
        assert source.classes == classes and source.kind == "table"
        assert [(i.key, i.label, i.path) for i in source.items] == [
            (k, label, os.path.join(tmp_path, path)) for k, (label, path) in enumerate(rows)
        ]


def test_columns_by_name(tmp_path):
    src = write(tmp_path / "T.TSV", "id\timage\tage\tsex\n9\ta.jpg\t30\t1\n")
    assert [i.label for i in read_source(src).items] == [(9.0, 30.0, 1.0)]
    assert [i.label for i in read_source(src, label_columns=["sex", "age"]).items] == [(1.0, 30.0)]
    other = read_source(src, path_column="id", label_columns=["age"], root="/r").items[0]
    assert (other.path, other.label) == ("/r/9", 30.0)
    with pytest.raises(UsageError, match=r"no column 'agee': did you mean 'age'\? It has: id, image, age, sex"):
        read_source(src, label_columns=["agee"])
    with pytest.raises(UsageError, match="no column 'zzzzzzzz': It has: id"):
        read_source(src, path_column="zzzzzzzz")


def test_what_is_no_source(tmp_path):
    for src, words in (
        ([], "several sources"),
        ([touch(tmp_path / "f", "a/1.jpg"), tmp_path / "a.tar"], "several sources"),
        (write(tmp_path / "a.txt", ""), "give a folder with a sub-folder"),
    ):
        with pytest.raises(UsageError, match=words):
            read_source(src)
    with pytest.raises(GluontuneError, match=r"none\.csv: no such file"):
        read_source(tmp_path / "none.csv")
    with pytest.raises(GluontuneError, match=r"none: no such file or folder"):
        read_source(tmp_path / "none")
    with pytest.raises(GluontuneError, match="not a text file in UTF-8"):
        (tmp_path / "b.lst").write_bytes(b"1\t1\t\xff.jpg")
        read_source(tmp_path / "b.lst")
    assert len(read_source([tmp_path / "f"]).items) == 1
    assert len(read_source((tmp_path / "f",)).items) == 1
    named = touch(tmp_path / "folder.tar", "a/1.jpg")  # a folder of that name is a folder
    assert read_source(named).kind == "folder"


def test_the_order_is_the_seeds_and_the_name_the_jobs():
    items = [Item(k, float(k), f"{k}.jpg") for k in range(9)]
    name = Source(items, None, "list").fingerprint(1, "x")
    assert len(name) == 8 and name == Source(list(items), ["a"], "folder").fingerprint(1, "x")
    for other in (
        Source(items[::-1], None, "list").fingerprint(1, "x"),
        Source(items[:-1], None, "list").fingerprint(1, "x"),
        Source([items[0]._replace(label=9.0), *items[1:]], None, "list").fingerprint(1, "x"),
        Source(items, None, "list").fingerprint(2, "x"),
        Source(items, None, "list").fingerprint(),
    ):
        assert other != name
    odd = Source([Item(0, 1.0, os.fsdecode(b"\xff.jpg"))], None, "list")
    assert len(odd.fingerprint()) == 8


def test_shuffling(tmp_path):
    src = touch(tmp_path / "src", *(f"a/{k}.jpg" for k in range(9)))
    by_default, first, second = (read_source(src, **o).items for o in ({}, {"seed": 0}, {"seed": 1}))
    assert by_default == first != second and sorted(first) == sorted(second) != first
    assert read_source(src, shuffle=True).items == first
    lst = write(tmp_path / "a.lst", "".join(f"{k}\t1\t{k}.jpg\n" for k in range(9)))
    assert [i.key for i in read_source(lst).items] == list(range(9))


@pytest.mark.parametrize(
    ("total", "shards", "sizes"), [(7, 3, [2, 2, 3]), (4, 4, [1] * 4), (9, 1, [9]), (10, 4, [2, 3, 2, 3])]
)
def test_shards_are_of_even_size_and_leave_nothing_out(total, shards, sizes):
    ranges = split_shards(total, shards)
    assert [len(r) for r in ranges] == sizes and [k for r in ranges for k in r] == list(range(total))


@pytest.mark.parametrize(
    ("name", "tar"),
    [
        ("a.tar", True), ("a.tar.gz", True), ("a.tgz", True), ("a.tbz2", True), ("a.txz", True), ("a.gz", False),
        ("a.tar.b.gz", False), ("tar", False), ("a.lst", False),
    ],
)  # fmt: skip
def test_names_of_archives(name, tar):
    assert is_tar(name) == tar


def test_places_of_members(tmp_path):
    assert place_of("x.tar!0+0!a") == ("x.tar", 0, 0) and place_of("a\nb.tar!1+2!c!d") == ("a\nb.tar", 1, 2)
    for none in ("x.tar!1!a", "x.tar!a+2!b", "x.tar!1+2", "!1+2!", "x.zip!1+2!a", "plain"):
        assert place_of(none) is None
    path = tmp_path / "x.tar"
    path.write_bytes(b"0123456789")
    assert read_member((str(path), 3, 4)) == b"3456" and read_member((str(path), 3, 0)) == b""
    assert read_member((str(path), 9, 1)) == b"9"
    with pytest.raises(OSError, match="the archive ends inside this member"):
        read_member((str(path), 9, 2))


def test_samples_of_an_archive(tmp_path):
    src = write_tar(
        tmp_path / "s.tar",
        ("d/a.b/1.x.jpg", b"one"), ("d/a.b/1.cls", b" 4\n"), ("d/a.b/1.seg.png", b"mask"),
        ("d/a.b/2.cls", b"5"), ("d/a.b/2.txt", b"no image"),
        ("d/3.JPG", b"three"), ("d/3.cls10", b"7"), ("d/3.cls2", b"6"), ("d/.3.jpg", b"hidden"),
        ("4.jpeg", b"four"), ("4.json", b'{"class": 8, "odd": null}'),
        ("e/4.jpeg", b"five"), ("e/4.json", b'{"cls": "9"}'),
    )  # fmt: skip
    source = read_source(src, shuffle=False)
    assert source.classes is None and source.kind == "tar"
    assert [(i.key, i.label) for i in source.items] == [(0, 4.0), (1, (7.0, 6.0)), (2, 8.0), (3, 9.0)]
    assert [read_member(place_of(i.path)) for i in source.items] == [b"mask", b"three", b"four", b"five"]
    assert [i.path.rpartition("!")[2] for i in source.items] == ["d/a.b/1.seg.png", "d/3.JPG", "4.jpeg", "e/4.jpeg"]


def test_a_class_is_the_folder_that_the_image_lies_in(tmp_path):
    src = write_tar(
        tmp_path / "s.tar", ("x/dog/1.jpg", b"1"), ("cat/1.jpg", b"2"), ("cat/1.jpg.txt", b"2"), ("x/dog/2.jpg", b"3")
    )
    source = read_source(src, shuffle=False)
    assert source.classes == ["cat", "dog"] and [i.label for i in source.items] == [1.0, 0.0, 1.0]
    for name in ("1.jpg", "./1.jpg"):
        with pytest.raises(GluontuneError, match="has no label: a member"):
            read_source(write_tar(tmp_path / "b.tar", (name, b"1")))
    for data in (b'{"label": "cat"}', b'{"label": {}}', b"{", b'{"label": [1, "x"]}'):
        with pytest.raises(GluontuneError, match="sample a: its label is not a number"):
            read_source(write_tar(tmp_path / "c.tar", ("a.jpg", b"1"), ("a.json", data)))
    with pytest.raises(GluontuneError, match="label 16777217"):
        read_source(write_tar(tmp_path / "d.tar", ("a.jpg", b"1"), ("a.cls", b"16777217")))
    with pytest.raises(GluontuneError, match="1 of 2 samples have no label of their own but a folder"):
        read_source(
            write_tar(tmp_path / "e.tar", ("a.jpg", b"1"), ("a.cls", b"1"), ("b/b.jpg", b"1"), ("b/b.json", b"{}"))
        )
    both = read_source([tmp_path / "s.tar", write_tar(tmp_path / "f.tar", ("ant/9.png", b"9"))], shuffle=False)
    assert both.classes == ["ant", "cat", "dog"] and [i.label for i in both.items] == [2.0, 1.0, 2.0, 0.0]
