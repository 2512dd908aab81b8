import pytest

from thalweg.interfaces import FinishReason, SequenceStatus


def test_every_final_status_has_its_own_reason_and_no_other_has_one() -> None:
    reasons = [FinishReason.from_status(status) for status in SequenceStatus if status.is_finished]
    assert len(set(reasons)) == len(reasons) == 7
    assert set(FinishReason) - set(reasons) == {FinishReason.ERROR}
    for status in SequenceStatus:
        if not status.is_finished:
            with pytest.raises(ValueError, match="is not final"):
                FinishReason.from_status(status)


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (3, "stop"),
        (4, "length"),
        (5, "abort"),
        (6, "prompt_length_exceeded"),
        (7, "insufficient_system_resource"),
        (8, "structured_output_failed"),
        (9, "vision_failed"),
    ],
)
def test_the_wire_number_of_a_status_maps_to_the_text_users_see(status: int, text: str) -> None:
    assert FinishReason.from_status(SequenceStatus(status)).value == text
