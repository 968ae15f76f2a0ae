"""A Gluon net as a PyTorch project that needs neither mxnet nor gluontune."""
