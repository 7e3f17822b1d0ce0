"""How long reading the weights takes at start-up, from a storage of known speed.

A rank opens every file and, unless the files are cut per rank, reads nearly all of them: pages that two
ranks need come from the page cache on a local disk, and are read again by each rank where none is shared.
"""

from __future__ import annotations

from typing import NamedTuple

from mlload.checkpoint.finding import MlloadError

UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
# Network file systems and buckets, whose clients do not share pages between ranks.
NOT_SHARED = ("nfs", "smb", "cifs", "lustre", "ceph", "s3", "gcs", "gs", "az", "fuse", "http", "https", "hub")


class Storage(NamedTuple):
    """kind: "nfs", "nvme", "s3", ...; speed: bytes a second that one machine reads from it"""

    kind: str
    speed: float

    @property
    def shared_cache(self) -> bool:
        """Whether ranks on one machine share what one of them has read."""
        return self.kind not in NOT_SHARED


class StartUp(NamedTuple):
    """read_bytes: over the wire, for all ranks of one machine; seconds: at the storage's speed;
    whole_bytes: of the weight files; host_bytes: of page cache that would hold them all"""

    read_bytes: int
    seconds: float
    whole_bytes: int
    host_bytes: int


def parse_storage(text: str) -> Storage:
    """ "nfs:1.2GB/s", "nvme:3GiB/s", "800MB/s"."""
    kind, colon, speed = text.strip().lower().rpartition(":")
    number = speed.removesuffix("/s").strip()
    unit = next((unit for unit in sorted(UNITS, key=len, reverse=True) if number.endswith(unit)), None)
    try:
        value = float(number.removesuffix(unit or "")) * UNITS[unit] if unit else -1.0
    except ValueError:
        value = -1.0
    if not 0 < value < 1e15:
        raise MlloadError(f"--storage takes a kind and a speed such as nfs:1.2GB/s, not {text!r}")
    return Storage(kind.strip() if colon and kind.strip() else "disk", value)


def start_up(storage: Storage, whole_bytes: int, ranks: int, *, per_rank: int | None = None) -> StartUp:
    """ranks: on one machine. per_rank: bytes that one reads where files are cut per rank, None where it reads all."""
    each = whole_bytes if per_rank is None else per_rank
    read = whole_bytes if storage.shared_cache and per_rank is None else ranks * each
    return StartUp(read, read / storage.speed, whole_bytes, whole_bytes)
