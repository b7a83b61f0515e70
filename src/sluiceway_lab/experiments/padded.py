"""A server whose events are as long as one likes: each of them names the model, and the model may have a long name."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

from sluiceway.errors import ConfigError
from sluiceway_lab.experiments.experiment import Lab
from sluiceway_lab.load.own_server import front_server, own_server
from sluiceway_lab.load.target_server import TargetServer, meet
from sluiceway_lab.session import RunningServer

_GOODBYE_S = 0.05


@contextlib.asynccontextmanager
async def padded_server(lab: Lab, n_bytes: int, *flags: str, front: str | None = None) -> AsyncIterator[TargetServer]:
    """A server of our own with these flags of `serve`, whose events are longer by so many bytes; 0: as they are.

    With `front`, clients talk to that application of `fronts`. The record has the model's own name in place of the long
    one. Raises `LoadError` for one that does not serve, `ConfigError` where another one was named.
    """
    if isinstance(lab.first, RunningServer):
        raise ConfigError("url", "this experiment starts its servers itself, each with flags of its own")
    padding = ("--served-model-name", "x" * n_bytes) if n_bytes else ()
    said = [*lab.first.serve_flags, *flags]
    lab.say(f"starting a server with events of {n_bytes} bytes more: {lab.first.files.name} {' '.join(flags)}".rstrip())
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(own_server(lab.first.files.path or lab.first.files.name, [*said, *padding]))
        await started.ready()
        target = started.target
        if front is not None:
            before = stack.enter_context(front_server(front, target))
            await before.ready()
            target = before.target
        server = await meet(target, pid=started.pid)
        lab.servers.append(replace(server, model=lab.first.files.name).facts(said))
        yield server
        # A connection closes in the loop's next turn, which the server's end would hold up: it would drain for nobody.
        await asyncio.sleep(_GOODBYE_S)
