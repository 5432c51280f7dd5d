"""`towerpack launch --ray`: Ray chooses the hosts of the ranks, and knows which hosts there are.

An actor for each rank starts `towerpack launch` on its host, as any scheduler would. These
launchers meet, check on their ranks and restart them as they do elsewhere. This file adds what only
Ray knows. If Ray loses an actor, the run starts again without it. If Ray can place another one, all
ranks save, and the run starts again with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from towerpack.core import logger
from towerpack.core.optional import require
from towerpack.core.processes import killed_with_parent
from towerpack.core.schedulers import DECISIVE
from towerpack.launch.ranks import STOP_SIGNALS, STOPPED
from towerpack.launch.rendezvous import free_addresses
from towerpack.launch.restarts import FIRST_ATTEMPT, RendezvousError, new_name

QUIET_SECONDS = 10.0  # a placed actor needs a second or two to start; after these, Ray has no host
REPORT_SECONDS = 30.0
CHECK_SECONDS = 0.5  # until a signal to this process is passed on
END_SECONDS = 30.0  # for a launcher that ends, or answers, because another one has failed
CHUNK = 1 << 16
# A rank on a host is not started by what started Ray there. And Ray gives each actor one thread.
NOT_FOR_RANKS = (*DECISIVE, "OMP_NUM_THREADS")


class RankActor:
    """Starts the launcher of one rank on the host that Ray has chosen.

    All methods run in one thread, with which the kernel ends the launcher.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None

    async def address(self) -> str:
        """A free address of this host."""
        host = require("ray.util", extra="ray").get_node_ip_address()
        return free_addresses(host, 1)[0]

    async def start(
        self, options: Sequence[str], environ: Mapping[str, str], directory: str, log: str
    ) -> None:
        """Starts the launcher. What it prints goes to the file `log`, or to `read`."""
        if not Path(directory).is_dir():
            raise FileNotFoundError(
                f"expected the directory {directory} on the host {os.uname().nodename} as well, "
                "since the launcher was started in it; start it on a disk that all hosts share"
            )
        own = {name: value for name, value in os.environ.items() if name not in NOT_FOR_RANKS}
        path = Path(directory, log or os.devnull)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "towerpack", "launch", *options),
                cwd=directory,
                env={**environ, **own},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file if log else asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                preexec_fn=functools.partial(killed_with_parent, os.getpid()),
            )

    async def read(self) -> bytes:
        """The next part of its output; nothing at the end."""
        stdout = self._process and self._process.stdout
        return await stdout.read(CHUNK) if stdout else b""

    async def wait(self) -> int:
        """Its exit status when it has ended, negative for a signal."""
        return await self._process.wait() if self._process else 0

    async def send(self, number: int) -> None:
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


class RayLauncher:
    """Runs a script as `low` to `high` ranks on an existing Ray cluster.

    `options` are those of the launcher of each rank, up to the arguments of the script. Up to
    `max_restarts` lost ranks are replaced. `seconds` limits the wait for hosts. `run` returns the
    exit code. It must be called in the main thread.
    """

    def __init__(
        self, options: Sequence[str], low: int, high: int, max_restarts: int, seconds: float
    ):
        self.options, self.low, self.high = options, low, high
        self.max_restarts, self.seconds = max_restarts, seconds
        self._ray = require("ray", extra="ray")
        self._placed: list[Any] = []
        self._waiting: dict[Any, Any] = {}  # what tells that Ray has placed it, and the actor
        self._lost = 0
        self._stops: list[int] = []

    def run(self, logs: Path) -> int:
        ray = self._ray
        try:
            ray.init("auto", log_to_driver=False, logging_level="warning")
        except ConnectionError as error:
            raise RendezvousError(
                f"expected a Ray cluster, received: {error}. Start one with `ray start --head`, or "
                "set RAY_ADDRESS to the address of one"
            ) from error
        gpus = int(ray.cluster_resources().get("GPU", 0) > 0)
        self._actor = ray.remote(RankActor).options(
            num_cpus=1, num_gpus=gpus, scheduling_strategy="SPREAD"
        )
        job, first, code = new_name(), 0, None
        with self._signals():
            try:
                while code is None:
                    self._place()
                    code = 128 + self._stops[0] if self._stops else self._train(job, first, logs)
                    first += self.max_restarts + 1  # the most that the launchers can have used
                return code
            finally:
                ray.shutdown()  # ends the actors

    def _place(self) -> None:
        """Waits until Ray has placed all ranks, or at least `low` and for some time no other."""
        begin = last = reported = time.monotonic()
        while not self._stops:
            while len(self._placed) + len(self._waiting) < self.high:
                actor = self._actor.remote()
                self._waiting[actor.address.remote()] = actor
            now = time.monotonic()
            for ref in self._ray.wait(list(self._waiting), timeout=CHECK_SECONDS)[0]:
                self._take(ref)
                last = now
            count = len(self._placed)
            if count == self.high or (count >= self.low and now - last >= QUIET_SECONDS):
                break
            text = f"Ray has placed {count} ranks, and {self.low} to {self.high} are needed"
            if now - begin > self.seconds or self._lost > self.max_restarts:
                raise RendezvousError(f"{text}, after {now - begin:.0f} s; see `ray status`")
            if now - reported > REPORT_SECONDS:
                logger.info("%s; see `ray status`", text)
                reported = now

    def _take(self, ref: Any) -> bool:
        """Whether Ray has really placed an actor that no longer waits."""
        actor = self._waiting.pop(ref)
        try:
            self._ray.get(ref)
        except self._ray.exceptions.RayActorError as error:
            logger.warning("Ray could not start a rank: %s", error)
            self._lost += 1
            return False
        self._placed.append(actor)
        return True

    def _train(self, job: str, first: int, logs: Path) -> int | None:
        """Runs the launchers to their end; None if the run starts again, with other ranks."""
        ray, size = self._ray, len(self._placed)
        logger.info("Ray has placed %d of at most %d ranks, which start now", size, self.high)
        try:
            place = ray.get(self._placed[0].address.remote())
            environ = {**os.environ, FIRST_ATTEMPT: f"{job}:{first}"}
            for rank, actor in enumerate(self._placed):
                where = ["--nnodes", str(size), "--node-rank", str(rank), "--rendezvous", place]
                log = str(logs / f"launcher-{rank}.log") if rank else ""
                ray.get(actor.start.remote([*where, *self.options], environ, os.getcwd(), log))
            code = self._watch(logs)
        except ray.exceptions.RayActorError as error:
            return self._end_after_loss(error)
        if self._stops or not code or len(self._placed) == size:
            return code
        self._lost += code not in STOPPED  # it failed while it saved
        return None if self._lost <= self.max_restarts else code

    def _watch(self, logs: Path) -> int:
        """Shows what the chief's launcher prints; returns the first exit code that is not 0."""
        ray, actors = self._ray, list(self._placed)
        exits = {actor.wait.remote(): rank for rank, actor in enumerate(actors)}
        output = actors[0].read.remote()
        code = passed_on = 0
        grown, deadline = False, float("inf")
        while exits or output:
            refs = [*exits, *self._waiting, *([output] if output else [])]
            for ref in ray.wait(refs, timeout=CHECK_SECONDS)[0]:
                if ref == output:
                    data = ray.get(ref)
                    output = actors[0].read.remote() if data else None
                    with contextlib.suppress(AttributeError, OSError, ValueError):  # it is closed
                        sys.stdout.buffer.write(data)
                        sys.stdout.flush()
                elif ref in exits:
                    rank, ended = exits.pop(ref), ray.get(ref)
                    if ended < 0 and not (self._stops or grown):
                        # Its host ends, and Ray with it; or this process was killed alone.
                        ray.kill(actors[rank])
                        ray.get(actors[rank].wait.remote())  # raises an error: the rank is lost
                    ended = 128 - ended if ended < 0 else ended
                    code = code or ended
                    if ended not in (0, *STOPPED):
                        failed = rank
                        deadline = min(deadline, time.monotonic() + END_SECONDS)
                elif self._take(ref) and not grown:
                    logger.info("Ray can place another rank: all save, and start again with it")
                    self._send(actors, signal.SIGTERM)
                    grown = True
            if len(self._stops) > passed_on:
                self._send(actors, self._stops[passed_on])
                passed_on += 1
            if time.monotonic() > deadline:
                text = "the launcher of rank %d has failed alone; %s/launcher-%d.log has its output"
                logger.error(text, failed, logs, failed)
                self._send([actors[rank] for rank in exits.values()], signal.SIGKILL)
                deadline = float("inf")
        return code

    def _send(self, actors: Sequence[Any], number: int) -> None:
        self._ray.get([actor.send.remote(number) for actor in actors])

    def _end_after_loss(self, error: Exception) -> int | None:
        """Ends what still runs: the other ranks cannot continue without the lost one."""
        ray, placed, self._placed = self._ray, self._placed, []
        logger.error("Ray has lost a rank: %s", str(error).partition("\n")[0])
        for actor in placed:
            try:
                ray.get(actor.send.remote(signal.SIGKILL), timeout=END_SECONDS)
                ray.get(actor.wait.remote(), timeout=END_SECONDS)
                self._placed.append(actor)
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                ray.kill(actor)
                self._lost += 1
        if self._stops:
            return 128 + self._stops[0]
        if self._lost > self.max_restarts:
            logger.error(
                "the run ends: ranks were lost %d times in all (see --max-restarts)", self._lost
            )
            return 1
        logger.info("the run starts again; ranks that are left: %d", len(self._placed))
        return None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, frame: FrameType | None) -> None:
            self._stops.append(number)

        before = {number: signal.signal(number, note) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
