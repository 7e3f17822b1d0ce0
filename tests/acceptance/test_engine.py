"""A real vLLM is the judge: what `mlload validate` says of the damaged real model is what the engine does."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.acceptance.damages import Case, asked
from tests.acceptance.judges import Answers, ask
from tests.real_models import RealModel
from tools.vllm_cpu import ready

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
ASKED = asked()


@pytest.fixture(scope="session")
def answers(real_model: RealModel) -> Mapping[str, Answers]:
    """Both judges' answers to every case, from one process of the engine."""
    if not ready():
        pytest.skip("no vLLM on this machine: python -m tools.vllm_cpu")
    return {answer.case.name: answer for answer in ask(ASKED, real_model("smollm2"))}


@pytest.mark.parametrize("case", ASKED, ids=lambda case: case.name)
def test_it_starts_where_the_engine_starts(case: Case, answers: Mapping[str, Answers]) -> None:
    answer = answers[case.name]
    if case.apart:
        # Where the two are meant to differ they do; a difference that is gone is no longer one to excuse.
        assert not answer.agree
        return
    assert answer.agree, f"vLLM: {answer.theirs}; ours: {answer.ours['starts']} {answer.ours['findings']}"


@pytest.mark.parametrize("case", [case for case in ASKED if case.names], ids=lambda case: case.name)
def test_an_error_names_what_is_at_fault(case: Case, answers: Mapping[str, Answers]) -> None:
    assert answers[case.name].named, answers[case.name].errors


@pytest.mark.parametrize("case", [case for case in ASKED if case.healthy], ids=lambda case: case.name)
def test_a_healthy_folder_passes_clean(case: Case, answers: Mapping[str, Answers]) -> None:
    answer = answers[case.name]
    assert answer.theirs["starts"] is True
    assert answer.ours["verdict"] == "ok", answer.ours["findings"]
    assert [found for found in answer.ours["findings"] if found["severity"] == "warning"] == []


@pytest.mark.parametrize("case", [case for case in ASKED if case.wrong], ids=lambda case: case.name)
def test_what_starts_and_answers_nonsense_is_a_failure(case: Case, answers: Mapping[str, Answers]) -> None:
    """The engine checks none of these; the verdict fails though it starts."""
    assert answers[case.name].theirs["starts"] is True
    assert answers[case.name].ours["verdict"] == "fail"


def test_tokens_of_kv_cache(answers: Mapping[str, Answers]) -> None:
    """1 GiB a rank, blocks of 128 tokens, 30 layers x 2 x KV heads x 64 x 2 bytes: 3 heads on one rank, 1 on each of 3.

    2**30 // (128 * 23040) = 364 blocks; a third of the bytes a token makes three times 364.
    """
    assert answers["healthy, three ranks of three heads"].theirs["kv_tokens"] == 2**30 // (128 * 7680) * 128 == 139776
    if "healthy" in answers:
        assert answers["healthy"].theirs["kv_tokens"] == 2**30 // (128 * 23040) * 128 == 46592
    for answer in answers.values():
        if answer.case.healthy:
            per_token = [rank["kv_bytes_per_token"] for rank in answer.ours["ranks"]]
            assert per_token == [23040 // answer.case.tp] * answer.case.tp
