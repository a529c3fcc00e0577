"""How the report names methods and quantities, and how it writes numbers."""

from __future__ import annotations

import math

from tricouple.report.statistics import MeanStd

METHODS = {
    "neg_mmiot": "Neg-MMIOT",
    "pushpull": "PushPull",
    "iot": "IOT",
    "infonce": "InfoNCE",
    "byol": "BYOL",
    "vicreg": "VICReg",
    "invaspread": "InvaSpread",
    "iot_uniformity": "IOT with uniformity",
    "dbot": "DBOT",
    "fused_gromov": "Fused-Gromov",
    "dbot_published": "DBOT, published code",
    "fused_gromov_published": "Fused-Gromov, published code",
}

SHAPINGS = {"linear": "linear", "log_sigmoid": "log-sigmoid"}

QUANTITIES = {
    "nc1": "NC1, scatter within classes",
    "nc2_std": "NC2, std of class-mean cosines",
    "nc2_deviation": "NC2, deviation from the ETF",
    "alpha": "α, similarity within classes",
    "beta": "β, similarity across classes",
    "effective_rank": "effective rank",
    "knn": "k-NN accuracy",
    "directions": "directions of the class means",
    "loss": "training loss",
}

AXES = {
    "epsilon": "ε",
    "temperature": "τ",
    "sharpness": "sharpness c = 1/(τε)",
    "n_iters": "Sinkhorn iterations",
    "dim": "embedding dimension",
    "data_dim": "data dimension",
    "per_class": "samples of a class",
    "batch_per_class": "samples of a class in a batch",
    "carry_over": "carry-over between batches",
    "learning_rate": "learning rate",
    "weight_decay": "weight decay",
    "steps": "training steps",
    "schedule": "learning-rate schedule",
    "sampler": "batch sampler",
    "kappa": "noise κ",
    "imbalance": "class imbalance",
    "n_classes": "number of classes K",
}


def method_name(method: str, shaping: str | None = None) -> str:
    """Return the name of a method, with its ψ if that is not the usual one.

    Example:
        >>> method_name("neg_mmiot", "log_sigmoid")
        'Neg-MMIOT (log-sigmoid ψ)'
    """
    name = METHODS.get(method, method)
    if shaping in (None, "linear"):
        return name
    return f"{name} ({SHAPINGS.get(str(shaping), shaping)} ψ)"


def axis_name(axis: str) -> str:
    """Return the name of a setting.

    Example:
        >>> axis_name("epsilon"), axis_name("my_setting")
        ('ε', 'my_setting')
    """
    return AXES.get(axis, axis)


def axis_value(value: object) -> str:
    """Write a value of a setting.

    Example:
        >>> axis_value(1.0), axis_value(0.05), axis_value("cosine")
        ('1', '0.05', 'cosine')
    """
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def number(value: float) -> str:
    """Write a number with three significant digits.

    Example:
        >>> number(0.012345), number(1234.5), number(float("nan"))
        ('0.0123', '1234', '–')
    """
    if not math.isfinite(value):
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.{_decimals(value)}f}"


def mean_std(value: MeanStd) -> str:
    """Write mean ± standard deviation to the same decimal place.

    Example:
        >>> mean_std(MeanStd(0.01234, 0.00056, 3)), mean_std(MeanStd(2.5e-6, 1e-7, 3))
        ('0.0123 ± 0.0006', '(2.50 ± 0.10)e-06')
    """
    if not math.isfinite(value.std):
        return number(value.mean)
    mean, std = value.mean, value.std
    largest = max(abs(mean), std)
    if largest != 0 and not 1e-3 <= largest < 1e5:
        exponent = math.floor(math.log10(largest))
        scale = 10.0**exponent
        return f"({mean / scale:.2f} ± {std / scale:.2f})e{exponent:+03d}"
    decimals = _decimals(largest)
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def listing(words: list[str]) -> str:
    """Join words as a sentence does.

    Example:
        >>> listing(["a", "b", "c"])
        'a, b and c'
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def duration(seconds: float) -> str:
    """Write a time span in the unit a reader would use.

    Example:
        >>> duration(42.0), duration(754.0), duration(9000.0)
        ('42 s', '12 min 34 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _decimals(value: float) -> int:
    """Decimals that show three significant digits of a value."""
    return 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
