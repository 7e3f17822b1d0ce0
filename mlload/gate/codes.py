"""Texts of what a gate itself reports: `mlload rules CODE` and docs/rules.md show them."""

from __future__ import annotations

# Code -> (title, explanation).
CODES: dict[str, tuple[str, str]] = {
    "GT001": (
        "waiver expired",
        "A waiver in mlload.toml or [tool.mlload] fits this finding, but its `until` has passed. The finding counts "
        "again. Mend the checkpoint, or look at the reason again and give a later date.",
    ),
    "LK001": (
        "file changed since it was approved",
        "The bytes of a file are not those whose sha256 the lock holds. Files that no engine reads (README, licence, "
        "pictures) are a note only.",
    ),
    "LK002": (
        "file missing or added since approval",
        "The lock names a file that is not there any more, or the checkpoint holds one that the lock does not name.",
    ),
    "LK003": (
        "another revision than approved",
        "The Hub repository is at another commit than the lock's. Alone it is a note: what matters is whether a file "
        "changed.",
    ),
    "LK004": (
        "another engine than approved",
        "The approval was for an engine at a version, with some optional extras counted as installed. Another version "
        "may refuse, or load differently, what that one accepted. Approve again with --lock.",
    ),
    "LK005": (
        "not approved at this size, GPU or with these flags",
        "The lock holds no approval for this combination of parallel sizes, GPU and engine flags.",
    ),
    "LK006": (
        "worse verdict than approved",
        "The same question now gets a worse answer: a file changed, an engine's facts are known better, or a waiver "
        "expired.",
    ),
    "LK007": (
        "waived since approval",
        "A finding is waived now that was not waived when the checkpoint was approved.",
    ),
}
