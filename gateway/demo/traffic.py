"""Simulated users of one side: each asks, reads the answer, thinks, and asks again.

A user waits for the answer before the next question, so the slower side also serves fewer requests in the same time.
"""

import asyncio
from random import Random

from gateway.demo.applications import APPLICATIONS, Application, Script
from gateway.demo.demo_client import Client, RequestFailed
from gateway.demo.score import Score

_THINK_SECONDS = (0.3, 1.7)
_PAUSE_AFTER_ERROR_SECONDS = 1.0


class Traffic:
    """All users of all applications, at one gateway.

    Args:
        url: The gateway's public URL.
        score: Where the answers are counted.
    """

    def __init__(self, url: str, score: Score) -> None:
        self._client = Client(url)
        self._score = score
        self._closing = asyncio.Event()
        self._users: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let the users begin, each after a moment of their own."""
        for application in APPLICATIONS:
            for number in range(application.users):
                rng = Random(f"{application.name}, user {number}")  # noqa: S311 - has to be foreseeable
                self._users.append(asyncio.ensure_future(self._use(application, rng)))

    async def stop(self, patience_seconds: float) -> None:
        """Ask no more. What is under way may end within ``patience_seconds``, and is dropped uncounted after it."""
        self._closing.set()
        if self._users:
            await asyncio.wait(self._users, timeout=patience_seconds)
        for user in self._users:
            user.cancel()
        results = await asyncio.gather(*self._users, return_exceptions=True)
        await self._client.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _use(self, application: Application, rng: Random) -> None:
        await self._think(rng)
        while not self._closing.is_set():
            await self._converse(application, application.script(rng), rng)

    async def _converse(self, application: Application, script: Script, rng: Random) -> None:
        fields = next(script)
        while not self._closing.is_set():
            try:
                answer = await self._client.ask(fields, application.source)
            except RequestFailed as error:
                self._score.add_error(str(error))
                await self._wait(_PAUSE_AFTER_ERROR_SECONDS)
                return
            self._score.add(application.name, answer)
            await self._think(rng)
            try:
                fields = script.send(answer.message)
            except StopIteration:
                return

    async def _think(self, rng: Random) -> None:
        await self._wait(rng.uniform(*_THINK_SECONDS))

    async def _wait(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
