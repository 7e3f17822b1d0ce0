"""One row of a dataset as text."""

from __future__ import annotations

from typing import Any

from mlload.checkpoint.finding import MlloadError

# Where datasets keep what a model is to read; the first that a row has is taken.
TEXT_COLUMNS = ("text", "content", "messages", "conversations", "document", "article")


def row_text(row: Any, where: str) -> str:
    """A string as it is; of a dict the first of TEXT_COLUMNS, and of a conversation what each side says."""
    if isinstance(row, str):
        return row
    if isinstance(row, dict):
        for column in TEXT_COLUMNS:
            value = row.get(column)
            if isinstance(value, str):
                return value
            if isinstance(value, list):
                turns = (turn for turn in value if isinstance(turn, dict))
                return "\n".join(str(turn.get("content") or turn.get("value") or "") for turn in turns)
    columns = f"; it has {', '.join(map(str, list(row)[:8]))}" if isinstance(row, dict) else ""
    raise MlloadError(f'{where} has neither "text" nor "messages"{columns}')
