"""Where public files are, with the checksums their publishers or torchvision give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """One public file.

    url: where it is. checksum: "md5:..." or "sha256:...", of which the beginning is enough.
    megabytes: about how large it is. target: the file or folder below the data folder that comes of
    it. members: empty for a plain file; else what becomes `target`, a path inside the archive.
    Where there are two, the first is an
        archive inside the archive.
    """

    url: str
    checksum: str
    megabytes: float
    target: str
    members: tuple[str, ...] = ()


#: the four files of MNIST and of sets in its form
_IDX = tuple(
    f"{part}-ubyte.gz"
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)


def _idx(base: str, folder: str, *files: tuple[str, float]) -> tuple[Remote, ...]:
    """The files of `_IDX` under that address, each with its md5 and its size."""
    return tuple(
        Remote(f"{base}/{name}", f"md5:{md5}", size, f"{folder}/{name}")
        for name, (md5, size) in zip(_IDX, files, strict=True)
    )


REMOTES: dict[str, tuple[Remote, ...]] = {
    "cifar10": (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
            170,
            "cifar-10-batches-py",
            ("cifar-10-batches-py",),
        ),
    ),
    "cifar100": (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
            169,
            "cifar-100-python",
            ("cifar-100-python",),
        ),
    ),
    "caltech101": (
        Remote(
            "https://data.caltech.edu/records/mzrjq-6wc02/files/caltech-101.zip",
            "md5:3138e1922a9193bfa496528edbbc45d0",
            137,
            "caltech101/101_ObjectCategories",
            ("caltech-101/101_ObjectCategories.tar.gz", "101_ObjectCategories"),
        ),
    ),
    "caltech256": (
        Remote(
            "https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
            "md5:67b4f42ca05d46448c6bb8ecd2220f6d",
            1183,
            "caltech256/256_ObjectCategories",
            ("256_ObjectCategories",),
        ),
    ),
    "tiny-imagenet": (
        Remote(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            248,
            "tiny-imagenet-200",
            ("tiny-imagenet-200",),
        ),
    ),
    "mnist": _idx(
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "mnist",
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9.9),
        ("d53e105ee54ea40749a09fcbcd1e9432", 0.03),
        ("9fb629c4189551a2d022fa330f9573f3", 1.6),
        ("ec29112dd5afa0611ce80d1b7f02629c", 0.01),
    ),
    "fashion-mnist": _idx(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        "fashion-mnist",
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26.4),
        ("25c81989df183df01b3e8a0aad5dffbe", 0.03),
        ("bef4ecab320f06d8554ea6380940ec79", 4.4),
        ("bb300cfdad3c16e7a12a480ee83cd310", 0.01),
    ),
    # torchvision's weights carry the beginning of their checksum in their name.
    "resnet18": (
        Remote(
            "https://download.pytorch.org/models/resnet18-f37072fd.pth",
            "sha256:f37072fd",
            47,
            "resnet18-f37072fd.pth",
        ),
    ),
    "mobilenetv2": (
        Remote(
            "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth",
            "sha256:b0353104",
            14,
            "mobilenet_v2-b0353104.pth",
        ),
    ),
}
