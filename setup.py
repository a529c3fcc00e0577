"""What depends on the Python that builds; all the rest is in pyproject.toml."""

from sysconfig import get_config_var

from setuptools import setup

# The extension keeps to the limited API: one wheel serves every Python from 3.11 on. Free-threaded
# Pythons cannot load it; they get a wheel of their own without it, and work through PyTorch.
limited = {} if get_config_var("Py_GIL_DISABLED") else {"py_limited_api": "cp311"}
setup(options={"bdist_wheel": limited})
