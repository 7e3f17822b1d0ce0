"""`write_folder`: a layout becomes a folder (or a bucket's), atomically, resumably, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache

from mlload.checkpoint.checkpoint import Checkpoint, FileRef
from mlload.checkpoint.finding import MlloadError
from mlload.writer.boxes import KEPT
from mlload.writer.carry import content
from mlload.writer.columns import Columns
from mlload.writer.copies import copies, jobs
from mlload.writer.execute import THREADS, Copier
from mlload.writer.folder import OutputFolder
from mlload.writer.holdings import Holdings
from mlload.writer.layout import Layout, Take, boxes_of
from mlload.writer.progress import Bar


def request_digest(layout: Layout, holdings: Holdings, carry: Sequence[FileRef]) -> str:
    """Equal for runs that would write the same bytes from the same source."""
    from hashlib import blake2b

    digest = blake2b(holdings.fingerprint.encode(), digest_size=16)
    for file in layout.files:
        digest.update(file.name.encode("utf-8", "surrogatepass") + file.header)
        for tensor in file.tensors:
            digest.update(_boxes_text(tensor.takes))
    for name, text in layout.texts.items():
        digest.update(name.encode("utf-8", "surrogatepass") + text)
    for ref in carry:
        digest.update(f"{ref.name}\0{ref.size}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


@lru_cache(KEPT)
def _boxes_text(takes: tuple[Take, ...]) -> bytes:
    return repr(boxes_of(takes)).encode()


def write_folder(
    path: str,
    layout: Layout,
    holdings: Holdings,
    *,
    carry_from: Checkpoint,
    carry: Sequence[FileRef] = (),
    verify: bool = False,
    progress: Callable[[str], None] | None = None,
) -> bool:
    """Write everything and give the folder its name. True when it went on from an interrupted run.

    Peak memory: a chunk per thread, and the names. Raises MlloadError; Ctrl-C leaves a resumable folder.
    """
    request = request_digest(layout, holdings, carry)
    if "://" in path:
        from mlload.writer.bucket import write_bucket

        return write_bucket(
            path, layout, holdings, request, carry_from=carry_from, carry=carry, verify=verify, progress=progress
        )
    found = copies(layout, holdings)
    size = layout.nbytes + sum(file.size for file in carry)
    with OutputFolder(path, request, size) as folder:
        if folder.complete:
            folder.finish()
            return True
        allow_files(len(layout.files) + 64)
        outputs: list[int] = []
        bar = Bar(progress, os.path.basename(folder.path), sum(file.size for file in layout.files))
        try:
            for file in layout.files:
                outputs.append(folder.create(file.name, file.size, file.header))
                for tensor, offset in () if isinstance(file.tensors, Columns) else file.places():
                    if tensor.before or tensor.content:
                        os.pwrite(outputs[-1], tensor.before + tensor.content, offset - len(tensor.before))
            copier = Copier(holdings.source, outputs, verify=verify, step=bar.step, recorded=folder.record)
            copier.run(jobs(found), folder.done)
            _seal(layout, outputs)
            for descriptor in outputs:
                os.fsync(descriptor)
        finally:
            bar.close()
            for descriptor in outputs:
                os.close(descriptor)
        for ref in carry:
            folder.write(ref.name, content(carry_from, ref))
        for name, text in layout.texts.items():
            folder.write(name, (text,))
        folder.finish()
        return folder.resumed


def _seal(layout: Layout, outputs: Sequence[int]) -> None:
    """Each file's own last touch, several files at once."""
    from concurrent.futures import ThreadPoolExecutor

    sealed = [(file.seal, number) for file, number in zip(layout.files, outputs, strict=True) if file.seal]
    if sealed:
        with ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(seal, number) for seal, number in sealed]:
                done.result()


def allow_files(count: int) -> None:
    """Let this process hold that many files open, as far as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 64
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise MlloadError(
                f"{count:,} files would be written at once and the system allows {hard:,}",
                hint="a larger --max-shard-size makes fewer files",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
