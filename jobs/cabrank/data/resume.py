"""Where an epoch stands, as a few numbers, and how another set of ranks goes on from there.

With the same ranks, workers and rows a batch, an iteration goes on with the very next batch. With others, what was read
becomes a `Leg` of the plan, and the rest is shared out anew: each unread row once, none again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cabrank.data.shards import Leg, Plan
from cabrank.errors import ConfigError, MetadataError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """How far the ranks are: `steps` batches each, in the epoch `epoch`, after the `legs` before."""

    epoch: int
    legs: tuple[Leg, ...]
    world: int
    workers: int
    batch_size: int
    steps: int
    worker: int | None = None
    """None: `steps` are the rank's. A number: they are those of this worker of it alone (in a DataLoader's process)."""

    @classmethod
    def start(cls, plan: Plan) -> Position:
        """Before the first batch of the plan's epoch."""
        return cls(plan.epoch, (), plan.world, 1, plan.batch_size, 0)

    def state(self, fingerprint: Mapping[str, Any]) -> dict[str, Any]:
        """What `state_dict` returns: plain numbers and texts, under 2 KB for dozens of legs."""
        legs = [[leg.world, leg.workers, leg.batch_size, leg.steps] for leg in self.legs]
        here = [self.world, self.workers, self.batch_size, self.steps]
        return {
            "version": VERSION,
            **fingerprint,
            "epoch": self.epoch,
            "legs": legs,
            "here": here,
            "worker": self.worker,
        }

    @classmethod
    def of(cls, state: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Position:
        """From `state`. `ConfigError` for what is no such state; `MetadataError` where it was saved of other data."""
        try:
            if state["version"] != VERSION:
                raise ConfigError(f"the state's version is {state['version']!r}, and this release reads {VERSION}")
            differing = {name: state[name] for name, value in fingerprint.items() if state[name] != value}
            legs = tuple(Leg(*map(int, leg)) for leg in state["legs"])
            world, workers, batch_size, steps = map(int, state["here"])
            every = (*legs, Leg(world, workers, batch_size, steps))
            if any(min(leg.world, leg.workers, leg.batch_size, leg.steps + 1) < 1 for leg in every):
                raise ValueError("ranks, workers and rows a batch are 1 or more")
            position = cls(int(state["epoch"]), legs, world, workers, batch_size, steps, state["worker"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"this is no state of an ObjectStorageDataset: {error!r}") from error
        if differing:
            told = ", ".join(f"{name} was {value!r} and is {fingerprint[name]!r}" for name, value in differing.items())
            raise MetadataError(f"the state was saved while reading other data, or in another order: {told}")
        return position

    def fits(self, plan: Plan, workers: int) -> bool:
        """Whether the same ranks and workers go on with the same rows a batch."""
        return (self.world, self.workers, self.batch_size) == (plan.world, workers, plan.batch_size)

    def resume(self, plan: Plan, worker: int, workers: int, *, cycle: bool) -> tuple[Plan, int, int]:
        """The plan to go on with, which worker's share a worker goes on with, and how many of its batches were had.

        A loader asks its worker 0 first, so that has to be the one whose turn it is.
        """
        if self.worker is not None and not (self.fits(plan, workers) and self.worker == worker):
            raise ConfigError(
                f"the state is of worker {self.worker} of {self.workers} of one of {self.world} ranks: it can go on "
                "there only; for other ranks or workers take the dataset's own state_dict(steps=…, workers=…)"
            )
        if self.fits(plan, workers):
            share = worker if self.worker is not None else (worker + self.steps) % workers
            own = self.steps if self.worker is not None else len(range(share, self.steps, workers))
            return replace(plan, epoch=self.epoch, legs=self.legs), share, own
        if not cycle:
            leg = Leg(self.world, self.workers, self.batch_size, self.steps)
            return replace(plan, epoch=self.epoch, legs=(*self.legs, leg)), worker, 0
        return self._resume_cycle(plan), worker, 0

    def after(self, steps: int, plan: Plan, workers: int, *, cycle: bool) -> Position:
        """Where a loader of `workers` is that went on from here and has taken `steps` batches since."""
        following, _, _ = self.resume(plan, 0, workers, cycle=cycle)
        had = self.steps if self.fits(plan, workers) else 0
        return Position(following.epoch, following.legs, plan.world, workers, plan.batch_size, had + steps)

    def _resume_cycle(self, plan: Plan) -> Plan:
        """Rounds are counted by the longest lane; of a lane that is a row shorter, a row a round may be read again."""
        if self.workers > 1:
            raise ConfigError("under cycle=True, other ranks can only go on from a state without DataLoader workers")
        rows = self.steps * self.batch_size
        first, full = (-(-replace(plan, epoch=self.epoch, legs=legs).todo // self.world) for legs in (self.legs, ()))
        if rows < first:
            return replace(plan, epoch=self.epoch, legs=(*self.legs, Leg(self.world, 1, 1, rows)))
        rounds, rows = divmod(rows - first, full)
        return replace(plan, epoch=self.epoch + 1 + rounds, legs=(Leg(self.world, 1, 1, rows),))
