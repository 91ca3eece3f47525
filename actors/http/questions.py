"""Questions to the tokenizer that a client waits for, besides generation."""

from __future__ import annotations

import asyncio
from typing import Any

from dgpp.serve.errors import ApiError


class Questions:
    """Pending questions by id; each is answered once, or refused."""

    def __init__(self) -> None:
        self._pending: dict[str, asyncio.Future[Any]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    async def ask(self, id: str) -> Any:  # noqa: A002
        """Wait for the answer. Raises the ApiError it is refused with."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[id] = future
        try:
            return await future
        finally:
            self._pending.pop(id, None)

    def answer(self, id: str, value: Any) -> None:  # noqa: A002
        """Nothing happens where its client has gone."""
        future = self._pending.get(id)
        if future is not None and not future.done():
            future.set_result(value)

    def refuse(self, id: str, error: ApiError) -> bool:  # noqa: A002
        """Whether a question of this id was pending."""
        future = self._pending.get(id)
        if future is None:
            return False
        if not future.done():
            future.set_exception(error)
        return True

    def refuse_all(self, error: ApiError) -> None:
        for name in list(self._pending):
            self.refuse(name, error)
