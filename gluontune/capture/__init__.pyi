from gluontune.capture.api import capture as capture
