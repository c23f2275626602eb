"""A report made by hand: the nine cells of the teaching input with the results of the oracle's table.

Everything that is not a published result is invented and only has to look like one.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from reports import contract as c
from reports.dataflow import flow_of
from reports.geometry import layout, triangle
from specs import load_platform, load_spec

# (backend, platform, spec, groups, f32 hex, bf16): the nine cells of the 27,525-token teaching input.
CELLS = [
    ("Triton", "H200", "walkthrough.triton", 16, "0x1.52fdd6p+0", 1.3203125),
    ("Triton", "B200", "walkthrough.triton", 16, "0x1.52fdd6p+0", 1.3203125),
    ("Triton", "SM120", "walkthrough.triton", 16, "0x1.52fdd6p+0", 1.3203125),
    ("FlashAttention-2", "H200", "walkthrough.flash_attention_2", 54, "0x1.52fc5ap+0", 1.3203125),
    ("FlashAttention-2", "B200", "walkthrough.flash_attention_2", 62, "0x1.5300fap+0", 1.328125),
    ("FlashAttention-2", "SM120", "walkthrough.flash_attention_2", 87, "0x1.5302a8p+0", 1.328125),
    ("FlashInfer", "H200", "walkthrough.xqa", 33, "0x1.52b064p+0", 1.3203125),
    ("FlashInfer", "B200", "walkthrough.trtllm_gen", 216, "0x1.5359e6p+0", 1.328125),
    ("FlashInfer", "SM120", "walkthrough.xqa", 47, "0x1.531154p+0", 1.328125),
]
EXACT = 1.325056137248
SPECS = ("walkthrough.flash_attention_2", "walkthrough.xqa", "walkthrough.trtllm_gen", "walkthrough.triton")
KV_LEN = 27525


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def f32_bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def number(x: float, form: str = "f32") -> c.Number:
    bits = f32_bits(x) if form == "f32" else f32_bits(x) >> 16
    digits = 8 if form == "f32" else 4
    return c.Number(
        text=f"{x:.9g}",
        hexfloat=float(x).hex().replace("0000000p", "p"),
        bits=f"0x{bits:0{digits}x}",
        format=form,
    )


def reading(x: float, form: str, site: str) -> c.Reading:
    shift = 0 if form == "f32" else 16
    distance = abs((f32_bits(x) >> shift) - (f32_bits(EXACT) >> shift))
    return c.Reading(
        site=site,
        format=form,
        sample=number(x, form),
        ulp_max=distance,
        ulp_mean=distance,
        off_share=float(distance > 0),
    )


def cells() -> tuple[c.Cell, ...]:
    return tuple(
        c.Cell(
            name=f"{backend} · {platform}",
            backend=backend,
            platform=platform,
            spec=spec,
            requested="flashinfer" if backend == "FlashInfer" else None,
            status="computed",
            content_hash=sha(wide),
            groups=groups,
            span=(KV_LEN // groups // 64 * 64, -(-KV_LEN // groups)),
            outputs=1,
            readings=(
                reading(float.fromhex(wide), "f32", "exact"),
                reading(narrow, "bf16", "output"),
            ),
            lse=number(10.5),
        )
        for backend, platform, spec, groups, wide, narrow in CELLS
    )


def distances() -> c.Distances:
    bits = np.array([f32_bits(float.fromhex(row[4])) for row in CELLS], dtype=np.int64)
    d = np.abs(bits[:, None] - bits[None])
    grid: Any = d.tolist()
    return c.Distances(
        site="exact",
        format="f32",
        cells=tuple(x.name for x in cells()),
        outputs=1,
        maximum=grid,
        mean=d.astype(float).tolist(),
        changed=(d > 0).astype(float).tolist(),
        special=np.zeros_like(d).tolist(),
    )


def geometry() -> c.GeometryView:
    """Not the distances of a single number, which lie on a line: a little is added to give them an area."""
    d = np.array(distances().maximum, dtype=np.float64)
    rng = np.random.default_rng(3)
    spread = np.array([0.0, 0.0, 0.0, *rng.uniform(500, 6000, 6)])
    d = np.hypot(d, np.abs(spread[:, None] - spread[None])) + (d > 0) * rng.uniform(0, 1200)
    names = distances().cells
    g = layout(names, d)
    place = {name: i for i, members in enumerate(g.classes) for name in members}
    triangles = []
    for platform in ("H200", "B200", "SM120"):
        corner = [n for n in names if n.endswith(platform)]
        at = [names.index(n) for n in corner]
        t = triangle(d[at[1], at[2]], d[at[0], at[2]], d[at[0], at[1]])
        triangles.append(
            c.TriangleView(
                platform=platform,
                corners=tuple(place[n] for n in corner),
                names=tuple(corner),
                sides=t.sides,
                kind=t.kind,
                angles=t.angles,
                area=t.area,
            )
        )
    links = {
        (place[a], place[b])
        for a in names
        for b in names
        if a.split(" · ")[0] == b.split(" · ")[0] and place[a] < place[b]
    }
    return c.GeometryView(
        metric="maximum f32 ULP before the last rounding",
        points=g.classes,
        coordinates=tuple(map(tuple, g.coordinates.tolist())),
        eigenvalues=g.eigenvalues,
        euclidean=g.euclidean,
        negative_share=g.negative_share,
        shown_2d=g.shown_2d,
        shown_3d=g.shown_3d,
        centres=tuple(
            c.CentreView(
                kind=centre.kind,
                ranking=tuple(
                    c.RankView(names=tuple(g.classes[i][0] for i in r.points), distance=r.distance)
                    for r in centre.ranking
                ),
                margin=centre.margin,
                at=centre.at,
                radius=centre.radius,
            )
            for centre in g.centres
        ),
        hull=g.hull,
        triangles=tuple(triangles),
        links=tuple(sorted(links)),
    )


def ownership() -> tuple[c.Ownership, ...]:
    from verify.partition import plan

    out = []
    for cell in cells():
        p = plan(
            load_spec(cell.spec),
            load_platform(cell.platform.lower()),
            kv_len=KV_LEN,
            q_heads=24,
            kv_heads=4,
            head_dim=256,
        )
        groups = []
        for group in p.groups:
            cut = np.flatnonzero(np.diff(group.tokens) != 1) + 1
            parts = np.split(group.tokens, cut)
            groups.append(tuple(c.TokenRun(start=int(x[0]), count=len(x)) for x in parts))
        rule = next(iter(load_spec(cell.spec).levels.values()))
        out.append(c.Ownership(cell=cell.name, kv_len=KV_LEN, rule=rule, groups=tuple(groups)))
    return tuple(out)


def study() -> c.Study:
    return c.Study(
        id="teaching",
        input=c.InputInfo(
            name="teaching",
            title="The teaching input",
            description="27,525 tokens, one scalar each: a row whose grouping alone decides the last bit.",
            origin="Two rows of twelve numbers and a staircase, written down in the project.",
            licence="Apache-2.0",
            arrays=(
                c.ArrayInfo(name="scores", shape=(1, KV_LEN), dtype="float32", sha256=sha("s")),
                c.ArrayInfo(name="values", shape=(KV_LEN, 1), dtype="float32", sha256=sha("v")),
            ),
            context={"q_heads": 24, "kv_heads": 4, "head_dim": 256},
        ),
        verdict=c.Verdict(
            headline="7 different f32 results in nine cells; bf16 splits them 5 to 4.",
            diverges=True,
            points=(
                "On the H200 every backend rounds to 1.3203125; on the SM120 only Triton does.",
                "Triton gives the same bits on every platform.",
            ),
        ),
        exact=c.Exact(sample=str(EXACT), method="ball arithmetic", width="1e-30"),
        cells=cells(),
        distances=(distances(),),
        geometry=(geometry(),),
        histograms=(
            c.Histogram(
                title="f32 distance from the correctly rounded exact answer",
                format="f32",
                buckets=("0", "1", "2", "3–4", "5–8", "9–16", "17–32"),
                series=tuple(
                    c.HistogramSeries(
                        name=x.name, counts=tuple(max(0, 90 - 13 * abs(b - i)) for b in range(7))
                    )
                    for i, x in enumerate(cells())
                ),
            ),
        ),
        ownership=ownership(),
        notes=(c.Note(kind="limit", text="One output a cell: shares are all or nothing here."),),
    )


def depth() -> c.Depth:
    ranges = (
        c.RangeInfo(name="SP01-M001", depth=6335, tokens=108, content="text and tool calls"),
        c.RangeInfo(name="SP03-M010", depth=19873, tokens=331, content="text"),
        c.RangeInfo(name="SP06-M010", depth=27525, tokens=936, content="prose and three parallel calls"),
        c.RangeInfo(name="SP03-M097", depth=122863, tokens=698, content="text and one confirmed apply"),
    )
    pairs = (("Triton · H200", "FlashAttention-2 · H200"), ("FlashInfer · H200", "FlashInfer · B200"))
    return c.Depth(
        format="bf16",
        ranges=ranges,
        series=tuple(
            c.DepthSeries(
                left=a,
                right=b,
                points=tuple(
                    c.DepthPoint(
                        range=r.name,
                        position=r.depth + 10,
                        n=256,
                        ulp_max=1 + i,
                        ulp_p99=1,
                        flips=0,
                        ulp_mean=0.1 + 0.05 * i + 0.1 * k,
                        changed=0.1 + 0.05 * i + 0.1 * k,
                    )
                    for i, r in enumerate(ranges)
                ),
            )
            for k, (a, b) in enumerate(pairs)
        ),
        sampled=4,
        positions=9060,
        seed=0,
        input="random scores of unit variance.",
    )


def splits() -> c.Splits:
    counts = (1, 2, 4, 8, 16, 32, 64, 128)
    return c.Splits(
        spec="walkthrough.flash_attention_2",
        kv_len=8192,
        inputs=400,
        seed=0,
        method="Scores are normal, values too.",
        points=tuple(
            c.SplitPoint(
                splits=n,
                mean=8 / (1 + k),
                low=7.2 / (1 + k),
                high=8.8 / (1 + k),
                worst=30.0,
                best_share=0.125,
            )
            for k, n in enumerate(counts)
        ),
        verdict="No split count is the most accurate on more than 20% of the inputs.",
    )


def traffic() -> c.TrafficView:
    from verify.traffic import Layer, dense, dense_backward, tiled, tiled_backward

    return c.TrafficView(
        assumption="32 heads, head_dim 128, 2-byte elements, 128 × 128 blocks, causal.",
        rows=tuple(
            c.TrafficRow(
                tokens=n,
                qkvo=dense(Layer(n)).parts[0][1],
                matrix=dense(Layer(n)).parts[1][1],
                dense=dense(Layer(n)).total,
                tiled=tiled(Layer(n)).total,
                dense_backward=dense_backward(Layer(n)).total,
                tiled_backward=tiled_backward(Layer(n)).total,
            )
            for n in (1024, 4096, 16384, 32768)
        ),
        decode=(
            c.DecodeTraffic(
                cell="FlashAttention-2 · H200",
                groups=54,
                partial=1028,
                kv=112742400,
                partials=2664576,
                total=115431552,
                microseconds=24.0,
            ),
        ),
        decode_note="24 query heads, 4 KV heads, head_dim 256.",
    )


def specs() -> tuple[c.SpecView, ...]:
    h200 = load_platform("h200")
    context = {"kv_len": KV_LEN, "q_heads": 24, "kv_heads": 4, "head_dim": 256}
    views = []
    for name in SPECS:
        spec = load_spec(name)
        views.append(
            c.SpecView(
                name=name,
                status=spec.file.status,
                summary=spec.file.summary,
                text=spec.to_toml(),
                sha256=spec.content_hash,
                flow=flow_of(spec, h200, context),
            )
        )
    return tuple(views)


def report(**changes: Any) -> c.Report:
    fields: dict[str, Any] = {
        "title": "Divergence report",
        "verdict": c.Verdict(
            headline="The same attention, nine cells, seven different answers in f32 and two in bf16",
            diverges=True,
            points=("FlashAttention-2 on H200 and B200 round to different bf16 values.",),
        ),
        "run": c.Run(
            id="20260101-000000-abc",
            command="ulpscope report --seed 0",
            seed=0,
            started="2026-01-01 00:00:00 UTC",
            seconds=12.3,
            versions={"ulpscope": "0.1.0", "numpy": "2.4.6"},
        ),
        "platforms": (
            c.Platform(name="h200", title="NVIDIA H200", sm_count=132, capability="9.0", bandwidth=4.8e12),
            c.Platform(name="b200", title="NVIDIA B200", sm_count=148, capability="10.0", bandwidth=8e12),
        ),
        "studies": (study(),),
        "specs": specs(),
        "diffs": (
            c.SpecDiff(
                left=SPECS[0],
                right=SPECS[1],
                lines=(
                    c.DiffLine(
                        kind="changed",
                        section="level",
                        site="weight",
                        left="exp(score - top)",
                        right="bf16(…)",
                    ),
                    c.DiffLine(
                        kind="same", section="row", site="output", left="bf16(exact)", right="bf16(exact)"
                    ),
                ),
            ),
            c.SpecDiff(left=SPECS[0], right=SPECS[3], lines=()),
        ),
        "depth": depth(),
        "splits": splits(),
        "traffic": traffic(),
        "notes": (c.Note(kind="information", text="Made by hand for the tests."),),
    }
    return c.Report(**{**fields, **changes})
