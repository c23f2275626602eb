"""Captured attention tensors against every candidate spec, for the prediction section."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reports.runs import measured as m
from reports.runs import prediction as c
from search.identify import POSITIONS
from specs.errors import InputError
from verify.identify.candidates import candidates
from verify.identify.identify import judged_fits, tried_on
from verify.identify.logits import repeats_share
from verify.identify.observations import of_run
from verify.identify.predict import Fit
from verify.identify.ranking import Identification, spans
from verify.runs.run import Run


def attention_runs(
    reals: Sequence[Run],
    names: Sequence[str],
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[c.AttentionRun, ...]:
    """Every run that holds q, k, v and out of a layer, against every candidate.

    Args:
        reals: runs; those without attention tensors are passed over.
        names: candidates, as `verify.identify.candidates.candidates` takes them.
        progress: told the name of a candidate, and how many of how many are done.

    Raises:
        InputError: no run has attention tensors, or every candidate is refused.
    """
    held = [r for r in reals if any(_whole(layer) for s in r.sequences for layer in s.attention)]
    if not held:
        raise InputError(
            "no run holds q, k, v and out of a layer",
            place="--candidate",
            remedy="record attention tensors (attn.L<layer>.q, .k, .v, .out), or give --predicted alone",
        )
    given = candidates(names)
    out: list[c.AttentionRun] = []
    for run in held:
        seen = of_run(run, most=POSITIONS)
        tried, refused = tried_on(seen, given, progress=progress)
        found = judged_fits(tried, refused, seen, e=repeats_share(run))
        by_name = {f.of.members[0].name: f for f in tried if not f.refused}
        out.append(
            c.AttentionRun(
                run=run.name,
                outcome="bit-exact"
                if found.ranking and found.ranking[0].exact_share == 1.0
                else "unexplained",
                verdict=found.verdict,
                layers=tuple(sorted({o.layer for o in seen if o.layer is not None})),
                fits=tuple(_fit(by_name[r.names[0]], found, i) for i, r in enumerate(found.ranking)),
                refused=tuple((r.name, r.why) for r in found.refused),
            )
        )
    return tuple(out)


def _whole(layer: object) -> bool:
    return all(getattr(layer, name) is not None for name in ("q", "k", "v", "out"))


def _fit(fit: Fit, found: Identification, rank: int) -> c.AttentionFit:
    ranked = found.ranking[rank]
    bins = [sum(part.bins[i] for part in fit.parts) for i in range(len(fit.parts[0].bins))]
    return c.AttentionFit(
        names=ranked.names,
        elements=fit.elements,
        exact=fit.exact,
        share=ranked.exact_share,
        positions=ranked.positions,
        exact_positions=ranked.exact_positions,
        histogram=tuple(
            m.UlpBin(low=low, high=high, count=n)
            for (low, high), n in zip(spans(), bins, strict=True)
            if n and low >= 0
        ),
        beyond=bins[-1],
        parts=tuple(
            c.AttentionPart(layer=p.layer, site=p.site, elements=p.elements, exact=p.exact) for p in fit.parts
        ),
        first=None
        if fit.first is None
        else c.AttentionPlace(
            observation=fit.first.observation,
            site=fit.first.site,
            layer=fit.first.layer,
            position=fit.first.index.get("position"),
            head=fit.first.index.get("head"),
            dim=fit.first.index.get("dim"),
            captured=fit.first.captured,
            predicted=fit.first.predicted,
        ),
    )
