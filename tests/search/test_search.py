"""The search as a whole, by the array engine: what it finds, that it is what it says, and that it repeats.

One file, so that the few functions that are compiled are shared.
"""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reports.cli import app
from search.evaluate import Evaluator
from search.evolve import evolve, mutate, random_inputs
from search.objective import Objective, violation
from search.run import Budget, Outcome, search
from search.seeds.drip import drips, narrow_states
from search.sides import Side, load_side
from search.space import Inputs, Space
from search.target import Target
from specs.errors import InputError, UnsupportedError
from verify import emulate

SHAPE = {"q_heads": 24, "kv_heads": 4, "head_dim": 256}
FA2 = "walkthrough.flash_attention_2@h200"


def groups(size: int) -> dict[str, str]:
    return {"split": f"tiles({size})", "block": "tiles(64)"}


def fa2(size: int) -> Side:
    return load_side(FA2, groups(size))


def exact_share(inputs: Inputs) -> Fraction:
    """|sum w v| / sum w |v|, with the exponentials of 60 digits."""
    from decimal import Decimal, localcontext

    with localcontext(prec=60):
        weights = [Fraction(Decimal(float(s)).exp()) for s in inputs.scores[0]]
    values = [Fraction(float(v)) for v in inputs.values[0, :, 0]]
    total = sum((w * v for w, v in zip(weights, values, strict=True)), Fraction(0))
    mass = sum((w * abs(v) for w, v in zip(weights, values, strict=True)), Fraction(0))
    return abs(total) / mass


def check(outcome: Outcome) -> None:
    """What is found is feasible, and is what `emulate` computes."""
    best, space = outcome.best, outcome.space
    assert best is not None
    assert np.abs(best.inputs.scores).max() <= space.score_box
    assert np.abs(best.inputs.values).max() <= space.value_box
    assert exact_share(best.inputs) >= space.exact_cancellation * (1 - Fraction(1, 10**12))
    for side, found in zip(outcome.sides, best.outputs, strict=True):
        again = emulate(
            side.spec,
            side.platform,
            scores=best.inputs.scores,
            values=best.inputs.values[0],
            context=dict(space.context),
            backend="oracle",
        )
        assert again.output.tobytes() == found.stored.tobytes()


# Real ULP that a search on one core is known to reach, and the largest there can be at 20 float32 roundings.
@pytest.mark.parametrize(("c", "least", "most"), [(1.0, 1.98, 1.992), (0.5, 3.92, 3.965), (0.1, 19.0, 19.22)])
def test_groups_of_20_against_12(c: float, least: float, most: float) -> None:
    outcome = search([fa2(20), fa2(12)], Space(kv_len=64, context=SHAPE, cancellation=c))
    assert outcome.best is not None
    assert outcome.bound is not None
    assert least <= outcome.best.score <= outcome.bound.real <= most
    assert outcome.bound.rigor == "rigorous"
    check(outcome)


def test_the_same_seed_gives_the_same_bits() -> None:
    def once(seed: int) -> Inputs:
        space = Space(kv_len=64, context=SHAPE, cancellation=0.5)
        best = search([fa2(20), fa2(12)], space, seed=seed, budget=Budget(evaluations=3000)).best
        assert best is not None
        return best.inputs

    a, b = once(3), once(3)
    assert a.scores.tobytes() == b.scores.tobytes()
    assert a.values.tobytes() == b.values.tobytes()


def test_sides_that_are_the_same_are_proved_to_be() -> None:
    outcome = search(
        [load_side(FA2), load_side("walkthrough.flash_attention_2@h100")], Space(kv_len=64, context=SHAPE)
    )
    assert (outcome.status, outcome.best, outcome.evaluations) == ("identical", None, 0)


def test_one_token_has_one_answer() -> None:
    sides = [load_side(FA2), load_side("walkthrough.triton@h200")]
    assert search(sides, Space(kv_len=1, context=SHAPE)).status == "identical"


def test_a_budget_is_kept() -> None:
    outcome = search(
        [fa2(20), fa2(12)], Space(kv_len=64, context=SHAPE), budget=Budget(evaluations=256, seconds=1e-6)
    )
    assert (outcome.status, outcome.cut, outcome.evaluations) == ("nothing", True, 0)
    with pytest.raises(InputError, match="evaluations = 0"):
        Budget(evaluations=0)


def test_edits_of_an_input() -> None:
    """At most two elements of a captured input change, and fixed tokens do not."""
    rng = np.random.default_rng(0)
    base = Inputs.one(rng.normal(size=64).astype(np.float32), np.round(rng.uniform(1, 2, 64) * 128) / 128)
    space = Space(kv_len=64, context=SHAPE, base=base, edits=2, fixed=frozenset(range(8)))
    target = Target([fa2(20), fa2(12)], space)
    before = target.measure(base).score[0]
    found = evolve(target, base, seed=1, evaluations=2000)
    s = found.inputs.scores[0] != base.scores[0]
    v = found.inputs.values[0, :, 0] != base.values[0, :, 0]
    assert 1 <= s.sum() + v.sum() <= 2
    assert not s[:8].any()
    assert not v[:8].any()
    assert found.score > before


def test_what_cannot_be_is_proved() -> None:
    base = Inputs.one(np.full(64, 30.0), np.ones(64))
    space = Space(kv_len=64, context=SHAPE, base=base, fixed=frozenset({0}))
    outcome = search([fa2(20), fa2(12)], space)
    assert (outcome.status, outcome.reason) == ("infeasible", "a fixed token lies outside the box")


def test_changes_stay_in_the_space() -> None:
    target = Target([fa2(20), fa2(12)], Space(kv_len=64, context=SHAPE, score_box=3.0, value_box=1.5))
    rng = np.random.default_rng(5)
    parents = random_inputs(target, rng, 16)
    for _ in range(5):
        parents = mutate(parents, target, rng, 64)
        assert np.abs(parents.scores).max() <= 3.0
        assert np.abs(parents.values).max() <= 1.5
        assert (target.stored(parents.values) == parents.values).all()


def test_a_batch_is_every_candidate_by_itself() -> None:
    """A candidate's outputs do not depend on what it is evaluated with."""
    evaluator = Evaluator(fa2(20), Space(kv_len=64, context=SHAPE))
    rng = np.random.default_rng(2)
    scores = rng.normal(size=(5, 64)).astype(np.float32) * 3
    values = np.round(rng.normal(size=(5, 64, 1)) * 64) / 64
    batch = Inputs(scores, values.astype(np.float32))
    whole = evaluator.run(batch)
    for i in range(5):
        one = evaluator.run(batch.pick([i]))
        assert one.before.tobytes() == whole.before[i].tobytes()
        assert one.stored.tobytes() == whole.stored[i].tobytes()


def test_formats_must_agree() -> None:
    with pytest.raises(InputError, match="store their outputs in"):
        Target([fa2(20), load_side("walkthrough.dense@h200")], Space(kv_len=8, context=SHAPE))
    with pytest.raises(InputError, match="one side alone"):
        Target([fa2(20)], Space(kv_len=8, context=SHAPE))
    with pytest.raises(UnsupportedError, match="scales the scores"):
        Target(
            [load_side("flash_attn2.splitkv_decode@h200")] * 2,
            Space(kv_len=8, context=SHAPE | {"head_dim": 64}),
        )


@pytest.mark.slow
def test_a_running_sum_in_bf16_loses_drops() -> None:
    """A spec of no library: every tile adds a little less than half a place, and none of it arrives.

    By default docs/search.md runs such a spec, and its figure is compared.
    """
    narrow = load_side(
        "walkthrough.trtllm_gen@b200", {"num": "bf16(prev(num) * a + partial * b)", "tile": "tiles(4)"}
    )
    assert narrow_states(narrow.program({"kv_len": 8})) == ["num"]
    assert not narrow_states(load_side("walkthrough.trtllm_gen@b200").program({"kv_len": 8}))
    target = Target([narrow, fa2(20)], Space(kv_len=256, context=SHAPE, cancellation=1.0))
    (seed,) = drips(target)
    whole = target.measure(seed.target.expand(seed.inputs))
    # 63 drops of just under half a place each: 31 places at least, one of them in a binade of half the spacing.
    assert whole.score[0] == seed.score > 30
    assert whole.violation[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("c", "least"), [(1.0, 3.7), (0.5, 6.2), (0.1, 25.7)])
def test_xqa_against_triton(c: float, least: float) -> None:
    sides = [
        load_side("walkthrough.xqa@h200", {"group": "tiles(20)"}),
        load_side("walkthrough.triton@h200", {"segment": "tiles(12)"}),
    ]
    outcome = search(
        sides, Space(kv_len=64, context=SHAPE, cancellation=c), budget=Budget(evaluations=100_000)
    )
    assert outcome.best is not None
    assert outcome.best.score >= least
    check(outcome)


@pytest.mark.slow
def test_three_gpus_apart_and_one_singled_out() -> None:
    sides = [load_side(f"walkthrough.flash_attention_2@{p}") for p in ("h200", "b200", "sm120")]
    space = Space(kv_len=27525, context=SHAPE)
    apart = search(sides, space).best
    assert apart is not None
    assert apart.score >= 1
    assert apart.least_integer >= 1
    single = search(sides, space, Objective(single=0)).best
    assert single is not None
    assert single.integer == {(0, 1): 4, (0, 2): 4, (1, 2): 0}


def test_tokens_flip() -> None:
    """Two tokens whose logits are nearly the same: the sides put another one first."""
    w = np.array([[1.0, 0.0], [0.0, 1.0]])
    target = Target(
        [fa2(20), fa2(12)], Space(kv_len=64, context=SHAPE, dims=2, cancellation=0.5), Objective("flips", w)
    )
    found = evolve(target, None, seed=0, evaluations=6000, until=1e-9)
    assert found.score > 0
    measured = target.measure(found.inputs)
    first, second = (o.stored.astype(np.float64)[0] for o in measured.outputs)
    assert first.argmax() != second.argmax() or first[0] == first[1]
    assert violation(found.inputs, target.space)[0] == 0


# -- commands -------------------------------------------------------------------------------------------------

COMMAND = ["search", FA2, FA2, "--kv-len", "64", "--set", "a.split=tiles(20)", "--set", "b.split=tiles(12)"]
COMMAND += ["--set", "block=tiles(64)", "-c", "1"]


def run(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def test_command(here: Path) -> None:
    result = run(*COMMAND, "--format", "json", "--out", "found")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    (made,) = data["witnesses"]
    assert data["status"] == "found"
    assert made["certified"] is True
    assert made["integer_ulp"] == {"0,1": 2}
    assert 1.98 < made["objective"] <= data["bound"]["real_ulp"]
    assert (here / "found/witness.json").exists()
    again = run("replay", "found/witness.json")
    assert again.exit_code == 0, again.output
    assert "replays" in again.stdout
    assert run(*COMMAND, "--out", "found", "--fail-on-divergence").exit_code == 1


def test_an_interruption_files_what_was_found(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of the fourth batch: the best of three is filed and certified."""
    measure, calls = Target.measure, [0]

    def interrupted(self: Target, inputs: Inputs):
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt
        return measure(self, inputs)

    monkeypatch.setattr(Target, "measure", interrupted)
    result = run(*COMMAND, "--method", "random", "--out", "found")
    assert result.exit_code == 130, result.output
    assert "interrupted: what was found so far is filed" in result.output
    monkeypatch.undo()
    monkeypatch.chdir(here)
    again = run("replay", "found/witness.json")
    assert again.exit_code == 0, again.output
    calls[0] = 3
    monkeypatch.setattr(Target, "measure", interrupted)
    space = Space(kv_len=64, context=SHAPE)
    with pytest.raises(KeyboardInterrupt):  # in a program it stays what it is
        search([fa2(20), fa2(12)], space)


def test_three_sides_over_two_columns_have_the_bound_of_a_pair() -> None:
    """Each pair may be apart in a column of its own: the range is not divided among the gaps."""
    from search.run import bound_for

    sides = [fa2(20), fa2(12), fa2(16)]
    one, two = (
        bound_for(sides, Space(64, context=SHAPE, cancellation=1.0, dims=d), Objective())[0] for d in (1, 2)
    )
    assert one is not None
    assert two is not None
    assert 0.98 < one.real < 1.0
    assert 1.97 < two.real < 2.0


def test_a_base_must_fit_the_space() -> None:
    ok = np.ones(8)
    for base, message in (
        (Inputs.one(np.array([np.nan, *np.zeros(7)]), ok), "NaN"),
        (Inputs.one(np.array([-np.inf, *np.zeros(7)]), ok), "masks tokens"),
        (Inputs.one(np.zeros(8), ok * np.inf), "not finite"),
    ):
        with pytest.raises(InputError, match=message):
            Space(kv_len=8, context=SHAPE, base=base)
    with pytest.raises(InputError, match="no numbers of bf16"):
        Target([fa2(20), fa2(12)], Space(kv_len=8, context=SHAPE, base=Inputs.one(np.zeros(8), ok * 1.001)))
    with pytest.raises(InputError, match="a projection of 2 columns"):
        Target([fa2(20), fa2(12)], Space(kv_len=8, context=SHAPE), Objective("flips", np.eye(2)))


def test_bound_command(here: Path) -> None:
    result = run(*COMMAND, "--bound", "--format", "json")
    data = json.loads(result.stdout)
    assert data["rigor"] == "rigorous"
    assert 1.985 < data["real_ulp"] < 1.995


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["search"], "fewer than two sides"),
        (["search", FA2, FA2], "no --kv-len"),
        (["search", FA2, "walkthrough.xqq@h200", "--kv-len", "64"], "did you mean"),
        (["search", FA2, FA2, "--kv-len", "64", "--set", "c.split=tiles(3)"], "names no side"),
        (["search", FA2, FA2, "--kv-len", "64", "--set", "split"], "has no '='"),
        (["search", FA2, FA2, "--kv-len", "64", "--single", "z"], "is no side"),
        (["search", FA2, FA2, "--kv-len", "64", "--base", "missing.npz"], "no such file"),
        (["search", FA2, FA2, "--kv-len", "64", "--objective", "flips"], "needs a projection"),
        (["search", *[FA2] * 9, "--kv-len", "64"], "give at most 8 SPEC@PLATFORM"),
        (["search", FA2, FA2, "--kv-len", "64", "--seconds", "inf"], "seconds = inf"),
        (["search", FA2, FA2, "--kv-len", "64", "--set", "kv_len=5"], "the length is --kv-len"),
        (["search", FA2, FA2, "--kv-len", "64", "--set", "has_sinks=1"], "gives a kernel sinks"),
        (["search", FA2, FA2, "--kv-len", "64", "--set", "window=-8"], "-8"),
        (["search", FA2, FA2, "--kv-len", "64", "--score-std", "nan"], "score_std = nan"),
        (["search", FA2, FA2, "--kv-len", "64", "--out", "file"], "cannot be written"),
        (["search", FA2, FA2, "--kv-len", "64", "--out", "taken"], "holds another witness.json"),
        (["search", FA2, FA2, "--kv-len", "64", "-c", "2"], "not between 0 and 1"),
        (["search", FA2, "walkthrough.xqa@h200", "--kv-len", "64", "--method", "magic"], "unknown method"),
        (["search", "--minimise", "missing.json"], "missing.json"),
        (["replay", "missing.json"], "missing.json"),
    ],
)
def test_mistakes_are_messages(here: Path, args: list[str], message: str) -> None:
    (here / "file").write_text("")
    (here / "taken").mkdir()
    (here / "taken" / "witness.json").write_text("{}")
    result = run(*args)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output
