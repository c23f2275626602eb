"""Work functions by name, versions of workers, and the child in a worker of a cluster."""

from __future__ import annotations

import json
import threading

import pytest

from search.campaign.engines import EngineError, same_versions
from search.campaign.engines.child import call_in_child, describe_exit
from search.campaign.work import call, payload, read_reply, resolve, versions
from specs.errors import InputError
from tests.search.campaign import working
from tests.search.campaign.working import EXITS, name, outcome


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not MODULE:FUNCTION"),
        ("os.getcwd", "is not MODULE:FUNCTION"),
        ("os:path.join", "is not MODULE:FUNCTION"),
        ("os:getcwd()", "is not MODULE:FUNCTION"),
        ("no.such.module:run", "cannot be imported"),
        ("os:no_such_function", "cannot be imported"),
        ("os:name", "is no function"),
    ],
)
def test_names_that_are_no_work_function(text, message):
    with pytest.raises(InputError, match=message):
        resolve(text)
    reply = read_reply(call(payload(text, "{}", None)))
    assert reply.ended == "failed"
    assert message in reply.message


def test_other_versions_on_a_worker_are_refused():
    same_versions(versions(), "here")
    same_versions({**versions(), "python": "3.99.0"}, "here")
    with pytest.raises(EngineError, match=r"there: its workers have jaxlib 0\.0\.1 \(here ") as found:
        same_versions({**versions(), "jaxlib": "0.0.1"}, "there")
    assert "install the same versions" in found.value.remedy


def ask(seed: int) -> tuple[str | None, str]:
    return call_in_child(payload(name(working.mixed), json.dumps({"seed": seed, "kv_len": 64}), None))


def test_a_child_lives_from_case_to_case_and_dies_alone():
    answers: list[tuple[str | None, str]] = []

    def run() -> None:
        answers.extend(ask(seed) for seed in (1, EXITS, 2, 3))

    thread = threading.Thread(target=run)  # the child ends with its thread
    thread.start()
    thread.join()
    assert [why for _, why in answers] == ["", "exit code 7", "", ""]
    for seed, (text, _) in zip((1, 2, 3), (answers[0], answers[2], answers[3]), strict=True):
        assert text is not None
        reply = read_reply(text)
        assert reply.outcome is not None
        assert reply.outcome.best_ulp == outcome({"seed": seed, "kv_len": 64})["best_ulp"]
        assert reply.files == outcome({"seed": seed, "kv_len": 64})["files"]
    assert answers[1][0] is None


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "SIGKILL"), (7, "exit code 7"), (0, "exit code 0"), (-99, "signal 99")]
)
def test_exit_codes_in_words(code, words):
    assert describe_exit(code) == words
