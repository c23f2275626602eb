import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.verify.metrics.made import full, ints, logits, run, sequence
from verify.metrics.align import align_runs, align_sequences, place, refuse


def test_rows_after_a_fork_are_not_comparable():
    a = sequence(tokens=[5, 6, 7, 8, 9], prompt=[1, 2])
    b = sequence(tokens=[5, 6, 0, 8, 9], prompt=[1, 2])
    found = align_sequences(a, b)
    assert found.comparable.tolist() == [
        True,
        True,
        True,
        False,
        False,
    ]  # at the fork the text before is the same
    assert (found.fork, found.prefix, found.after_fork, found.verified) == (2, 2, 2, True)


@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=12), st.lists(st.integers(0, 2), min_size=1, max_size=12)
)
def test_prefix_is_that_of_the_lists(x, y):
    found = align_sequences(sequence(tokens=x), sequence(tokens=y))
    n = min(len(x), len(y))
    expected = next((i for i in range(n) if x[i] != y[i]), None)
    assert found.fork == expected
    assert found.comparable.sum() == (n if expected is None else expected + 1)
    assert found.alone == (len(x) - n, len(y) - n)


def test_differing_prompts_are_never_compared_and_named():
    a = run("a", sequence("one", tokens=[1, 2], prompt=[4]), sequence("two", tokens=[1, 2], prompt=[4]))
    b = run("b", sequence("one", tokens=[1, 2], prompt=[4]), sequence("two", tokens=[1, 2], prompt=[5]))
    found = align_runs(a, b)
    assert found.refused == (("two", "prompts differ"),)
    assert [s.comparable.any() for s in found.sequences] == [True, False]


def test_prompts_recorded_as_rows_may_differ_too():
    """A reader that gives rows to the prompt says where the answer starts."""
    labels = {"answer_row": "2"}
    a = sequence(tokens=[7, 8, 1, 2], prompt=[4], labels=labels)
    prompt = align_sequences(a, sequence(tokens=[7, 9, 1, 2], prompt=[4], labels=labels))
    answer = align_sequences(a, sequence(tokens=[7, 8, 1, 3], prompt=[4], labels=labels))
    assert (prompt.refused, prompt.comparable.any()) == ("prompts differ", False)
    assert (answer.refused, answer.fork) == (None, 3)


def test_requests_with_unequal_hashes():
    a, b = (sequence(tokens=[1], labels={"request_sha256": x}) for x in "xy")
    assert align_sequences(a, b).refused == "requests differ (request_sha256)"


@pytest.mark.parametrize(
    ("prompt", "refused", "verified"),
    [([9, 1, 2], None, True), ([9, 1, 3], "prompts differ", False), ([9], None, False)],
    ids=["same", "other", "incomplete"],
)
def test_a_suffix_is_aligned_by_position(prompt, refused, verified):
    """Cached prefixes leave only the last rows: they meet the rows of the same positions, not the first ones."""
    whole = sequence(tokens=[1, 2, 3, 4], prompt=[9])
    suffix = sequence(tokens=[3, 4], positions=[2, 3], prompt=prompt)
    found = align_sequences(whole, suffix)
    assert (found.rows_a.tolist(), found.rows_b.tolist()) == ([2, 3], [0, 1])
    assert (found.refused, found.verified) == (refused, verified)


def test_missing_and_duplicate_positions():
    a = sequence(tokens=[1, 2, 4], positions=[0, 1, 3])
    b = sequence(tokens=[1, 2, 2, 3, 4], positions=[0, 1, 1, 2, 3])
    found = align_sequences(a, b)
    assert found.positions.tolist() == [0, 1, 3]
    assert (found.rows_a.tolist(), found.rows_b.tolist()) == ([0, 1, 2], [0, 1, 4])
    assert (found.alone, found.duplicates, found.verified) == ((0, 1), (0, 1), False)


def test_texts_stand_in_for_ids():
    a, b = sequence(texts=("x", "y", "z")), sequence(texts=("x", "q", "z"))
    found = align_sequences(a, b)
    assert (found.by, found.fork, found.same_token.tolist()) == ("texts", 1, [1, 0, 1])
    ids = align_sequences(
        sequence(tokens=[1, 2], texts=("x", "x")), sequence(tokens=[1, 3], texts=("x", "x"))
    )
    assert (ids.by, ids.fork) == ("ids", 1)


def test_unknown_tokens_are_no_fork_but_not_verified():
    found = align_sequences(sequence(n=3), sequence(n=3))
    assert (found.fork, found.by, found.verified, found.comparable.all()) == (None, "positions", False, True)
    assert align_sequences(sequence(n=3), sequence(n=3), forced=True).verified


def test_scores_have_no_text_before():
    found = align_sequences(sequence(tokens=[1, 2, 3]), sequence(tokens=[0, 2, 3]), independent=True)
    assert found.comparable.all()
    assert found.fork is None


def test_repeats_are_matched_in_order():
    a = run("a", *(sequence("c", r, tokens=[1]) for r in (0, 1, 2)), sequence("only", tokens=[1]))
    b = run("b", sequence("c", 7, tokens=[1]), sequence("other", tokens=[1]))
    found = align_runs(a, b)
    assert [(s.repeat_a, s.repeat_b) for s in found.sequences] == [(0, 7)]
    assert (found.unmatched_repeats, found.only_first, found.only_second) == ((2, 0), ("only",), ("other",))


def test_one_capture_twice():
    """A distance of 0 after a change that changed nothing: the two files are one (known fault)."""
    x = logits(2, 5)
    same = align_runs(
        run("a", sequence(values=x), sha256="f" * 64), run("b", sequence(values=x), sha256="f" * 64)
    )
    assert same.same_capture == "the files have one hash"
    stored = [run(n, sequence(n=2, full=full(x, key="file:0:hash"))) for n in "ab"]
    assert "same bytes" in str(align_runs(*stored).same_capture)
    assert align_runs(run("a", sequence(values=x)), run("b", sequence(values=x))).same_capture is None


def test_positions_that_count_from_the_answer():
    """A server that stopped telling the prompt: its rows meet those of the answer, not those of the prompt."""
    whole = sequence(tokens=[7, 8, 1, 2], prompt=[4], labels={"answer_row": "2"})
    answer = sequence(tokens=[1, 2], labels={"positions": "from the first answered token", "answer_row": "0"})
    assert align_sequences(whole, answer).refused == "the length of one prompt is not known"
    a, b = place([run("a", whole), run("b", answer)])
    found = align_runs(a, b).sequences[0]
    assert (found.rows_a.tolist(), found.rows_b.tolist()) == ([2, 3], [0, 1])
    assert (found.refused, found.fork, found.verified) == (None, None, False)


def test_refusing_a_pair():
    found = refuse(
        align_runs(run("a", sequence(tokens=[1])), run("b", sequence(tokens=[1]))), "vocabularies differ"
    )
    assert found.refused == (("c", "vocabularies differ"),)
    assert not found.sequences[0].comparable.any()
    assert ints([1]).dtype == np.int64
