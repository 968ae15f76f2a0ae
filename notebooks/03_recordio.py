# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · One file instead of many
#
# **Question.** Deck "The Steady State" (AWS, 2019) says that a binary input format "can improve performance by orders of
# magnitude". What does it improve here, and by how much?
#
# **You will be able to** write and read a record file with MXNet and with gluontune, and say what it makes faster and what it does
# not.
#
# **Before this:** `02_multi_worker`. **Time:** 30 minutes; on two cores the cells run for half a minute.

# %%
from gluontune.course import picture

picture("records")

# %% tags=["parameters"]
dataset = "synthetic:train=1200,test=100,size=224"
epochs = 1
batch_size_per_device = 32
dtype = "float32"
num_workers = 0
devices = "auto"
quick = True
out_dir = "runs/03_recordio"
seed = 0
quick_samples = 400

# %% [markdown]
# Two predictions: how many times faster are images *read* from one record file than from single files? And how many
# times faster can a loader then *feed* a device?

# %%
import time
from pathlib import Path

import numpy as np

import gluontune as gt
from gluontune.course import (
    as_files,
    bars,
    check,
    compare,
    feed,
    flip_bit,
    loading_rate,
    predict,
    record_fields,
    show,
    table,
)

# %%
data = gt.datasets.open(dataset)
count = min(quick_samples if quick else 4000, len(data.train))
predict("times as fast, reading bytes", ...)
predict("times as fast, feeding a device", ...)

# %% [markdown]
# ## By hand: a record file
# *RecordIO* is MXNet's format: the images as they are, one behind the other, each with a small header. `IRHeader` is that header:
# a flag, the label, a number for the image, a second number. `MXIndexedRecordIO` writes the records and, beside them, an index.

# %%
mx = gt.runtime.mxnet()
folder = as_files(data.train, f"{out_dir}/files", count)
files = sorted(folder.glob("*/*"))
classes = sorted({file.parent.name for file in files})
by_hand = Path(out_dir) / "by-hand.rec"
writer = mx.recordio.MXIndexedRecordIO(str(by_hand.with_suffix(".idx")), str(by_hand), "w")
for key in np.random.default_rng(seed).permutation(len(files)):  # shuffled once, while packing
    header = mx.recordio.IRHeader(0, classes.index(files[key].parent.name), int(key), 0)
    writer.write_idx(int(key), mx.recordio.pack(header, files[key].read_bytes()))
writer.close()
print(
    f"{len(files)} files, {sum(f.stat().st_size for f in files):,} bytes; {by_hand.stat().st_size:,} in one file"
)

# %%
reader = mx.recordio.MXIndexedRecordIO(str(by_hand.with_suffix(".idx")), str(by_hand), "r")
header, content = mx.recordio.unpack(reader.read_idx(7))
print(header, "and an image of", len(content), "bytes;", "equal:", content == files[7].read_bytes())
mapped = np.memmap(
    by_hand, "uint8", "r"
)  # the file as an array: read from the system's cache, without a copy
print("a record begins with", mapped[:4].tobytes().hex(" "))

# %% [markdown]
# MXNet's own loader for it is `ImageRecordIter`: threads in C++ read, decode, crop and flip, and Python gets whole batches. Gluon's way
# is an `ImageRecordDataset` in a `DataLoader`. Both take the same file; the loop is the same as well. Three passes; the first is left
# out, for `ImageRecordIter` has loaded its first batches before anybody asks.

# %%
height, width, channels = data.image_shape
vision = mx.gluon.data.vision
photos = vision.ImageRecordDataset(str(by_hand)).transform_first(vision.transforms.ToTensor())
gluon_loader = mx.gluon.data.DataLoader(photos, batch_size_per_device, last_batch="discard")
record_iter = mx.io.ImageRecordIter(
    path_imgrec=str(by_hand),
    data_shape=(channels, height, width),
    batch_size=batch_size_per_device,
    shuffle=True,
    rand_mirror=True,
    preprocess_threads=gt.runtime.usable_cores(),
    verbose=False,
)


# %%
def images_per_second(batches, pixels_of):
    counted, started = 0, time.perf_counter()
    for batch in batches:
        x = pixels_of(batch)
        x.wait_to_read()
        counted += len(x)
    return counted / (time.perf_counter() - started)


rates = {"DataLoader": [], "ImageRecordIter": []}
for _ in range(3):
    rates["DataLoader"].append(images_per_second(gluon_loader, lambda batch: batch[0]))
    record_iter.reset()  # begins anew; at its end it gives nothing until this
    rates["ImageRecordIter"].append(images_per_second(record_iter, lambda batch: batch.data[0]))
table(
    {"loader": name, "images/s": ", ".join(f"{r:,.0f}" for r in found[1:])} for name, found in rates.items()
)

# %% [markdown]
# (Where the two passes of a loader differ much, other programs were at work: measure more of them.) `ImageRecordIter` uses at most half of
# the cores, whatever `preprocess_threads` says (reported), and reads no more than its file: no Python transform, no second label unless told.
# `DataLoader(thread_pool=True)` over a record file gives **wrong records**: its threads share one file position.

# %% [markdown]
# ## With gluontune: what a record file is
# `pack` writes the same format from a folder, on all cores and without decoding. Look at its first record.

# %%
rec = Path(out_dir) / "images.rec"
packed = gt.records.pack(folder, rec, exact=True, seed=seed)
table(
    [
        {
            "images": packed.packed,
            "classes": len(packed.classes),
            "bytes": f"{packed.bytes:,}",
            "images/s": f"{packed.images_per_sec:,.0f}",
        }
    ]
)

# %%
table(record_fields(rec))

# %% [markdown]
# - The *magic number*, the same four bytes before each record, lets a reader find its way again after damage; that is why it
#   never occurs inside an image.
# - The label is a **float32**. The exercises show what that costs.
# - An index file (`.idx`) beside it says at which byte each record starts, so that images can be read in any order.
# - `np.memmap` above *mapped* the file: it looks like an array in memory, and the system reads a page of it when it is first touched. The
#   NVIDIA deck advises that for files; gluontune's reader does so.
#
# ## Measure: reading
# The same images, resized to one size, kept in four ways and read in a random order by one thread; once the bytes
# alone, once up to pixels. The files have just been written, so all of them lie in memory: on a turning
# disk, which moves its arm to each file, the difference is larger.

# %%
side = min(data.image_shape[:2])
formats = gt.records.compare_formats(folder, resize=side, repeats=3, seed=seed)
rows = [row for row in formats if row.reading_images_per_sec]  # LMDB is measured where it is installed
reading = {row.name: row.reading_images_per_sec for row in rows}
bars(reading, unit="images/s, bytes alone", caption="Reading bytes: one open file against one file an image")

# %%
bars(
    {row.name: row.pixels_images_per_sec for row in rows},
    unit="images/s, decoded",
    caption="Reading up to pixels: now the JPEG decoder works as well",
)

# %%
named = {row.name: row for row in rows}
files, records = named["files"], named["JPEG records"]
print(compare("times as fast, reading bytes", records.reading_images_per_sec / files.reading_images_per_sec))
print(f"Up to pixels: {records.pixels_images_per_sec / files.pixels_images_per_sec:.2f} times as fast.")
raw = named["raw-pixel records"]
print(f"Raw pixels need {raw.bytes / records.bytes:.1f} times the space of JPEG.")

# %% [markdown]
# ## Measure: feeding
# What counts is the device that waits for the images. There may be no GPU here, so this lesson uses a
# **simulated device**: it takes a fixed time for each batch, computes nothing and leaves the cores to the loader, as a GPU
# would. Its speed follows the deck: its V100 trained 941 images/s once all was mended, and got 307 from the naive loader. So
# the simulated device can take 941 / 307 times what the naive loader gives here.

# %%
naive = gt.Recipe(
    dataset=dataset, batch_size_per_device=batch_size_per_device, num_workers=num_workers, seed=seed
)
seconds = 1.5 if quick else 6
device_rate = loading_rate(naive, data, seconds=seconds) * 941 / 307
ms_per_batch = 1000 * batch_size_per_device / device_rate
print(f"The simulated device could take {device_rate:,.0f} images/s: {ms_per_batch:.1f} ms a batch.")

# %%
ways = {
    "naive: one image after the other": naive,
    "records, threaded loader": naive.override(loader="threaded", num_workers=gt.runtime.usable_cores()),
    "decoded once, kept in memory": naive.override(loader="resident"),
}
fed = {name: feed(recipe, data, ms_per_batch=ms_per_batch, seconds=seconds) for name, recipe in ways.items()}
for number, result in enumerate(fed.values()):
    result.save(f"{out_dir}/feeding-{number}.json")

# %%
bars(
    {name: result.samples_per_sec for name, result in fed.items()},
    unit="images/s that reach the simulated device",
    caption="Feeding the simulated device: median and 95 % interval",
    limits={"the device's limit": device_rate},
)

# %%
show("utilization", fed)

# %%
rates = [result.samples_per_sec["median"] for result in fed.values()]
busy = [result.steadiness["mean_pct"] for result in fed.values()]
print(compare("times as fast, feeding a device", max(rates) / rates[0]))
print(f"About {941 / 307:.2f} is the limit: the device is then busy all the time. It is less where the naive")
print("loader is faster this time than when the device's speed was taken from it.")
print(
    "(The curves above begin before the first batch, so their averages are a little lower than the table's.)"
)
table({"loader": name, "device busy, percent": f"{share:.0f}"} for name, share in zip(fed, busy))

# %% [markdown]
# ## Why
# Opening, reading and closing a file costs some microseconds; a record is a slice of one file that stays open. Decoding
# a JPEG of this size costs far more. So a record file speeds up what *reading* costs, and the loader's speed comes from
# what it does next: decoding on several threads in C, straight into the batch, without a Python object for each image.
# Where the images fit into memory, decoding once and never again beats both.
#
# The deck's "orders of magnitude" holds for a cold disk or a network file system with millions of small
# files. `gluontune size FILE.rec` measures your disk, too.
#
# A disk is described by two numbers: bytes a second, and *IOPS*, the reads that it can begin in a second. A folder of small files
# needs at least one read for each image; a record file that is read in order needs one for each piece, say of 1 MiB. How many
# does the simulated device need, if nothing is in memory?

# %%
average = packed.bytes / packed.packed
table(
    {"kept as": name, "reads a second": f"{device_rate * reads:,.1f}"}
    for name, reads in {"single files": 1.0, "a record file, read in order": average / 2**20}.items()
)

# %% [markdown]
# A turning disk begins about 100 reads a second, an SSD some ten thousands; what is rented in a cloud often has a limit by contract.
# That is where one file wins by orders of magnitude.
#
# ## What if one bit changes?
# A record file is one large file, so it should not be lost as a whole. `gluontune pack` writes a *checksum* for each record: a
# number made from its bytes, which another byte would change.

# %%
broken = Path(out_dir) / "broken.rec"
for suffix in (".rec", ".idx", ".crc"):
    broken.with_suffix(suffix).write_bytes(rec.with_suffix(suffix).read_bytes())
flip_bit(broken, packed.bytes // 2)
found = gt.records.verify(broken)
table({"record": damage.index, "at byte": damage.offset, "what": damage.reason} for damage in found.damaged)

# %%
kept = gt.records.repair(broken, Path(out_dir) / "repaired.rec")
print(f"{kept.kept} of {found.records} records are whole and kept.")

# %%
# Try this: smaller images. Which of the ways gains most?
for row in gt.records.compare_formats(folder, resize=side // 2, repeats=1, seed=seed):
    if row.pixels_images_per_sec:
        print(f"{row.name}: {row.pixels_images_per_sec:,.0f} images/s, decoded")

# %% [markdown]
# | by hand | with gluontune | what it adds |
# |---|---|---|
# | `MXIndexedRecordIO`, a loop over files | `gt.records.pack` | all cores; checksums; the file appears whole or not at all; class names kept |
# | `ImageRecordIter` | `loader="threaded"` | all cores; right after damage; equal batches for each rank |
# | a broken file is an exception, or nothing | `gt.records.verify`, `repair` | which record, at which byte, and the rest saved |
#
# ## Summary: what to remember
# - A record file saves opening files and keeps neighbours together; it does not make decoding cheaper.
# - Measure bytes, pixels and batches apart: the slowest of them is your loader's speed.
# - What the device cannot take is not worth making faster.
#
# ## Exercises
# Put your answer in place of the three dots.

# %%
with gt.records.RecordReader(rec) as reader:
    payload = len(reader.payload(0))
# How many bytes of the file does the first record take, with its headers and its zeros at the end?
check("record-bytes", ..., payload=payload)

# %%
# Labels are float32. Up to which whole number is each label exact?
check("label-limit", ...)

# %%
# A GPU takes 25 ms for a batch of 256. How many images a second must the loader give?
check("feed-rate", ...)

# %%
# Write a function (image, label, key) -> the bytes of a record, with mx.recordio; image is the bytes of a JPEG file.
check("write-record", ...)

# %% [markdown]
# **Reference:** `gt.records.pack?`, `gt.records.verify?`, `gt.records.RecordReader?` in a cell show what they take.
#
# **Next:** [`04_hybridize`](04_hybridize.ipynb). The device is fed; now look at what it computes.
