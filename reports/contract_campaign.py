"""The part of the contract for campaigns of searches: what was found, against which bound, and what was not found."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from reports.contract_base import Count, Frozen, Note

Size = Annotated[float, Field(ge=0.0)]
Status = Literal["done", "failed", "crashed", "timeout", "pending"]


class CampaignCase(Frozen):
    """One search. What is None is not known; ``missing`` says why, by field.

    Attributes:
        group: index of the group that it belongs to.
        method, seed: what searched.
        status: how it ended; ``pending``: not yet.
        found: ``witness``, ``nothing``, ``infeasible`` or ``identical``; empty until it is done.
        best_ulp: the objective of its best input, in the unit of its group.
        integer_ulp: distance of the stored outputs there.
        bound_ulp, rigor: the upper bound that it computed, and ``rigorous`` or ``first order``.
        share: ``best_ulp`` over the bound of the group.
        evaluations: candidates evaluated.
        certified: whether an exact replay agrees and every constraint is known to hold.
        over_mean, over_largest: |exact output| over the weighted mean, and over the largest, of |v|; where the
            output has several columns, the smallest.
        survives: by how many f32 ULP every exp may be off without a narrow rounding changing; ``any``, ``unknown``.
        witness: relative link to the witness's JSON.
        cut: whether wall time ended it, so that another run may find another result.
        attempts: how often it was tried. seconds: wall time of the last attempt.
        reason: why nothing was found, or why it did not finish.
        missing: why a field has no value, by its name.
    """

    group: Count
    method: str
    seed: Count
    status: Status
    found: str = ""
    best_ulp: Size | None = None
    integer_ulp: Count | None = None
    bound_ulp: Size | None = None
    rigor: str = ""
    share: Size | None = None
    evaluations: Count | None = None
    certified: bool | None = None
    over_mean: Size | None = None
    over_largest: Size | None = None
    survives: Count | Literal["any", "unknown"] | None = None
    witness: str | None = None
    cut: bool = False
    attempts: Count = 0
    seconds: Size | None = None
    reason: str = ""
    missing: dict[str, str] = Field(default_factory=dict[str, str])


class MethodResult(Frozen):
    """One method on the cases of a group.

    Attributes:
        seeds: its cases. finished: those that are done. found: those with a witness.
        median: of the best ULP over the finished seeds, a seed that found nothing counting below all others; None:
            it falls among those.
        best: over the seeds.
        evaluations: median over the finished seeds.
        cut: how many wall time cut.
        points: the best ULP by seed, where one was found.
    """

    method: str
    seeds: Count
    finished: Count
    found: Count
    median: Size | None
    best: Size | None
    evaluations: Size | None
    cut: Count
    points: tuple[tuple[Count, Size], ...]


class CampaignGroup(Frozen):
    """Cases that differ in method and seed alone.

    Attributes:
        sides: what is compared, with changed lines.
        kv_len: tokens. cancellation: c. objective: what is maximised. space: the rest of the constraints.
        evaluations: the budget. seconds: its wall time, None: no limit.
        bound_ulp, rigor: the smallest rigorous bound of its cases, or the smallest of first order.
        no_bound: why there is none.
        best: index of the case with the largest ULP.
        methods: one for each method, in order.
    """

    sides: tuple[str, ...]
    kv_len: Count
    cancellation: float
    objective: str
    space: str
    evaluations: Count
    seconds: Size | None
    bound_ulp: Size | None = None
    rigor: str = ""
    no_bound: str = ""
    best: Count | None = None
    methods: tuple[MethodResult, ...] = ()

    @property
    def unit(self) -> str:
        """What the objective is counted in, in words."""
        metric = self.objective.partition(":")[0]
        return {"f32": "ULP of the float32 result", "flips": "of logit margin", "kl": "nats"}.get(
            metric, "ULP"
        )

    @property
    def name(self) -> str:
        """One line."""
        return (
            f"{' / '.join(self.sides)}, {self.kv_len:,} tokens, c = {self.cancellation:g}, {self.objective}"
        )


class CampaignRun(Frozen):
    """One start of the campaign. ``how`` is empty while it runs, and for ever if it was killed."""

    began: str
    ended: str
    how: str
    engine: str
    workers: Count
    versions: dict[str, str]


class CampaignView(Frozen):
    """A campaign, as of the moment of the report; ``file`` is the text of the campaign file."""

    name: str
    title: str
    created: str
    file: str
    counts: dict[Status, Count]
    groups: tuple[CampaignGroup, ...]
    cases: tuple[CampaignCase, ...]
    runs: tuple[CampaignRun, ...]
    notes: tuple[Note, ...] = ()
