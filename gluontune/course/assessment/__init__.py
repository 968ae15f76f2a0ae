"""The assessment that ends the course (the finale of NVIDIA's "Fundamentals of Deep Learning for Multi-GPUs",
made harder to cheat): make a naive, serial training script fast, then make it work on two ranks.

The rules, for the script:

* It calls ``task = gt.course.task()`` and trains a net on ``task.train``. ``task.val`` is for validation, not for
  training; the classes of two in three of its images are random, half of these wrong, so a good net reaches 0.42.
  ``task.normalize(images)`` is the grader's input to the net. Net, optimizer, loader and everything else are free.
* At its end, each rank calls ``task.save(net, samples)`` with the number of images it has trained on (at least one
  epoch), and ends by itself, leaving nothing running.
* On two ranks it runs twice at the same time: ``task.rank`` is 0 or 1, each has its own half of the images,
  ``mx.kv.create("dist_sync")`` (or Horovod) joins them, and both hand in the same parameters.
* It is a single file: it reads its data, Python and its packages, and writes to its own folders.

What is graded, for each of the two runs:

* **accuracy** of the saved net on hidden test images: at most 5 points below the reference's, on the same data;
* **time**, from the first process's start to the last one's end: at most twice the reference's on this machine, just
  measured;
* **steadiness** of the device's utilization: 80 % of the reference's (gives points, but is not required to pass);
* **correctness**: ended by itself within time and memory, left nothing running, learned from both halves of the
  training images and from no others, each rank worked for an epoch and as much as the others (by CPU time, which the
  kernel counts; the reported number of images does not count), and (on two ranks) the parameters agree.

What is done against cheating, and what is not detected, is in `docs/threats.md`.
"""

from __future__ import annotations

from gluontune.core import lazy

__getattr__, __dir__, __all__ = lazy.attach(__name__, __file__)
