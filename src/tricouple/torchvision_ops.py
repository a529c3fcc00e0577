"""Let ``import torchvision`` succeed beside a torch build that its compiled operators do not fit.

A torchvision wheel built for CUDA cannot load its compiled operators beside a CPU-only torch. It
tolerates that, except that it registers shape rules for ``torchvision::nms`` at import time, which
needs the operator to be declared: "operator torchvision::nms does not exist". Declaring the schemas
is enough for what does not call these operators (transforms, datasets, models). Call
``declare_missing`` before an import of torchvision, timm, lightly or open_clip.
"""

import contextlib
import importlib.util
from pathlib import Path

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}

# Declarations last as long as the library object that made them.
_libraries: list[torch.library.Library] = []


def declare_missing() -> list[str]:
    """Declare what torchvision's import needs and cannot load; the names declared, if any."""
    package = importlib.util.find_spec("torchvision")
    # What torchvision does first when it is imported; failing is no error there either.
    for folder in (package and package.submodule_search_locations) or ():
        for binary in Path(folder).glob("_C*"):
            with contextlib.suppress(ImportError, OSError):
                torch.ops.load_library(binary)
    missing = [name for name in _SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    if missing:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            library.define(_SCHEMAS[name])
        _libraries.append(library)
    return missing
