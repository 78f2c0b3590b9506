"""Shows the plan: what each rank reads, and the proof that all of them together read each row once."""

from __future__ import annotations

from cabrank.config import PlanConfig
from cabrank.console import counted, json_line, say, table
from cabrank.data.counting import part_counts
from cabrank.data.coverage import Share, shares, verify
from cabrank.data.listing import Part, list_parts
from cabrank.data.reading import part_schema
from cabrank.data.shards import Plan, make_plan
from cabrank.store import canonical, open_store


def run(config: PlanConfig) -> None:
    """Lists the parts, takes their counts from the metadata (or counts them), and shares them out. Reads no rows where
    there is metadata, and starts nothing."""
    uri = canonical(config.data)
    store = open_store(uri, config.storage_options())
    parts = list_parts(uri, store)
    plan = make_plan(
        part_counts(parts, store, part_schema(parts, store, counting=True)),
        batch_size=config.batch_size,
        world=config.world,
        tail=config.tail,
        seed=config.seed if config.shuffle else None,
        epoch=config.epoch,
    )
    found = shares(plan, [part.size or 0 for part in parts])
    batches = verify(plan, config.workers) if config.verify else None
    (show_json if config.as_json else show)(config, plan, parts, found, batches)


def show(config: PlanConfig, plan: Plan, parts: list[Part], found: list[Share], batches: int | None) -> None:
    """Tables for a person."""
    names = [str(part.number if part.number is not None else place) for place, part in enumerate(parts)] + ["-"]
    rows = [
        [str(s.rank), f"{s.steps:,}", f"{s.rows:,}", f"{s.repeated:,}", f"{s.parts:,}", f"{s.bytes / 1e6:,.1f}",
         names[s.first_part], names[s.last_part]]
        for s in found
    ]  # fmt: skip
    say(f"{canonical(config.data)}: {counted(plan.total, 'row')} in {counted(len(parts), 'part')}")
    header = ["rank", "steps", "rows", "repeated", "parts", "MB", "from part", "to part"]
    table(f"{counted(plan.world, 'rank')} × {counted(plan.batch_size, 'row')} a batch, tail {plan.tail}", header, rows)
    say(f"steps an epoch: {steps_text(found)}; rows left out: {plan.left_out:,}; rows repeated: {plan.repeated:,}")
    if batches is not None:
        workers = counted(config.workers, "worker")
        say(f"verified: {counted(batches, 'batch')} of {workers} a rank read each row exactly once")


def steps_text(found: list[Share]) -> str:
    """`12`, or `11 to 12` where ranks differ."""
    fewest, most = min(s.steps for s in found), max(s.steps for s in found)
    return f"{most:,}" if fewest == most else f"{fewest:,} to {most:,}"


def show_json(config: PlanConfig, plan: Plan, parts: list[Part], found: list[Share], batches: int | None) -> None:
    """The same as one object on one line."""
    facts: dict[str, object] = {
        "data": canonical(config.data), "rows": plan.total, "parts": len(parts), "world": plan.world,
        "workers": config.workers, "batch_size": plan.batch_size, "tail": plan.tail,
        "steps": max(s.steps for s in found),
        "left_out": plan.left_out, "repeated": plan.repeated, "verified_batches": batches,
        "ranks": [share.facts() for share in found],
    }  # fmt: skip
    say(json_line(facts))
