"""The kernel of the lessons in JupyterLab."""

from ipykernel.ipkernel import IPythonKernel


class LessonKernel(IPythonKernel):
    """Python's kernel without its version: a lesson that is only looked at stays saved.

    JupyterLab writes a kernel's language into the notebook. Lessons have this one already (``tools.build_notebooks``).
    """

    language_info = {key: value for key, value in IPythonKernel.language_info.items() if key != "version"}
