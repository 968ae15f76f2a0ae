"""Train two recipes, each in a process of its own, and write one page of both.

python examples/compare.py [OUT.html]    compare.html without it
"""

import sys

import gluontune as gt

small = gt.Recipe(net="small_cnn", dataset="sample", train_samples=2000, val_samples=500, batch_size_per_device=100)
recipes = {
    "as installed": small.override(loader="gluon", num_workers=0, hybridize="imperative", runtime="as-installed"),
    "with gluontune": small.override(loader="resident", hybridize="static", rewrites=["pool-to-mean"]),
}
results = []
for name, recipe in recipes.items():
    result = gt.train.run(recipe)
    rate = result.samples_per_sec
    if result.status != "ok" or rate is None:
        sys.exit(f"{name}: {result.error}")
    low, high = rate["ci95"]
    print(
        f"{name}: {rate['median']:.0f} images a second ({low:.0f}-{high:.0f}), accuracy {result.val_accuracy[-1]:.3f}"
    )
    results.append(result)

out = sys.argv[1] if len(sys.argv) > 1 else "compare.html"
gt.report.write_runs_html(results, out, labels=list(recipes))
print(f"wrote {out}")
