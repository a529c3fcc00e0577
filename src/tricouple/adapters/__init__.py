"""The losses in the calling conventions of other libraries, one file a library.

Each file is imported by its own name: ``from tricouple.adapters.lightly import TwoViewLoss``. What
they adapt to comes with ``pip install '.[adapters]'``.
"""

from tricouple.torchvision_ops import declare_missing

declare_missing()  # these libraries import torchvision
