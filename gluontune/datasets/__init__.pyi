from gluontune.datasets.catalog import (
    DATASETS as DATASETS,
    Dataset as Dataset,
    DatasetInfo as DatasetInfo,
    DatasetWarning as DatasetWarning,
    add as add,
    fetch as fetch,
    list_datasets as list_datasets,
    make as make,
    open_dataset,
)
from gluontune.datasets.split import Split as Split

open = open_dataset
