"""What ``gluontune run`` changes in a running script, one class each; ``gluontune/capture/names.py`` lists them."""
