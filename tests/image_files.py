"""Tiny image data sets on disk, in the layouts in which the real ones are published."""

import pickle
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat


def random_pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def digits_of(n: int) -> np.ndarray:
    return (np.arange(n) % 10).astype(np.uint8)


def write_idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    path.write_bytes(header + values.tobytes())


def write_mnist(root: Path, n_train: int = 40, n_test: int = 20) -> Path:
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for prefix, n in {"train": n_train, "t10k": n_test}.items():
        write_idx(folder / f"{prefix}-images-idx3-ubyte", random_pixels(n, 28, 28, seed=n))
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", digits_of(n))
    return folder


def write_pickle(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def write_cifar10(root: Path, batches: tuple[int, ...] = (1, 2, 3, 4, 5), n: int = 20) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in batches), "test_batch"):
        pixels = random_pixels(n, 3072, seed=sum(map(ord, name)))
        write_pickle(folder / name, {"data": pixels, "labels": digits_of(n).tolist()})
    write_pickle(folder / "batches.meta", {"label_names": [f"kind {i}" for i in range(10)]})
    return folder


def write_cifar100(root: Path, n: int = 200) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for name in ("train", "test"):
        labels = (np.arange(n) % 100).tolist()
        content = {"data": random_pixels(n, 3072), "fine_labels": labels, "coarse_labels": labels}
        write_pickle(folder / name, content)
    write_pickle(folder / "meta", {"fine_label_names": [f"fine {i}" for i in range(100)]})
    return folder


def write_svhn(root: Path, n: int = 30) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        labels = (np.arange(n) % 10 + 1).astype(np.uint8)[:, None]  # 1 to 10, and 10 means 0
        content = {"X": random_pixels(32, 32, 3, n), "y": labels}
        savemat(root / f"{part}_32x32.mat", content, do_compression=True)
    return root


def write_image(path: Path, side: int | tuple[int, int] = 16, mode: str = "RGB", seed: int = 0):
    """A noisy image; the file's suffix decides the format."""
    width, height = (side, side) if isinstance(side, int) else side
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(random_pixels(height, width, *channels, seed=seed)).save(path)


def write_classes(root: Path, sizes: dict[str, int], suffix: str = ".png", **options) -> Path:
    for name, size in sizes.items():
        for number in range(size):
            write_image(root / name / f"{number}{suffix}", seed=number, **options)
    return root


WNIDS = ("n01443537", "n01629819", "n02123045")


def write_tiny_imagenet(root: Path, n: int = 4) -> Path:
    folder = root / "tiny-imagenet-200"
    rows = []
    for code, wnid in enumerate(WNIDS):
        for number in range(n):
            name = f"{wnid}_{number}.JPEG"
            mode = "L" if number == 0 else "RGB"  # some of the real ones are grey
            write_image(folder / "train" / wnid / "images" / name, 64, mode, seed=number)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text("")
        write_image(folder / "val" / "images" / f"val_{code}.JPEG", 64)
        rows.append(f"val_{code}.JPEG\t{wnid}\t0\t0\t62\t62\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(rows))
    (folder / "words.txt").write_text("n01443537\tgoldfish, Carassius auratus\nn9\tother\n")
    return folder


def truncate(path: Path, keep: float = 0.5) -> None:
    """What an interrupted copy leaves."""
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
