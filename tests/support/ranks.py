"""What tests of several ranks share."""

from __future__ import annotations

from gluontune.job import checkpoint
from gluontune.recipe import Recipe
from gluontune.train import Checkpoints, Group, run

#: Two ranks of 32 images, of a net without BatchNorm: the same training as one process with 64.
TWO = Recipe(
    net="mlp", loader="resident", train_samples=2048, val_samples=128, augment="none", devices="cpu",
    learning_rate=0.1, engine="kvstore", num_devices=2, batch_size_per_device=32,
)  # fmt: skip


def parameters_after(recipe, steps, folder, site=None):
    """Rank 0's parameters by name after so many steps."""
    with Group(recipe, checkpoints={"folder": str(folder), "keep": 1}, site=site) as group:
        group.steps(steps)
        group.checkpoint({"val_accuracy": None}, wait=True)
    _, arrays = checkpoint.read(checkpoint.files(folder)[0])
    return {name: value for name, value in arrays.items() if name.startswith("parameter/")}


def check_that_it_resumes(recipe, folder, site=None):
    """Two epochs learn; without its last checkpoint, the run is gone on with and ends with the same bytes."""
    recipe = recipe.override(net="small_cnn", epochs=2, augment=None)
    whole = run(recipe, checkpoints=Checkpoints(folder, every="7steps"), site=site)
    assert whole.ok and whole.val_accuracy[-1] > 0.4
    last = folder / checkpoint.name_of(whole.steps)
    want = checkpoint.read(last)[1]
    last.unlink()
    again = run(recipe, checkpoints=Checkpoints(folder, resume=True))
    assert again.ok and "went on from" in again.notes[0]
    got = checkpoint.read(checkpoint.files(folder)[0])[1]
    assert all(want[name].tobytes() == got[name].tobytes() for name in want)
