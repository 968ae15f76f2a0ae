"""What ``gluontune run`` changes in a running script, one class each; ``gluontune/capture/script.py`` lists them."""
