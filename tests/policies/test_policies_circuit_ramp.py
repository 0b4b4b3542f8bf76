"""The ramp: those who waited come back in growing numbers, and fewer where the service cannot take them."""

from __future__ import annotations

import pytest

from holdfast.policies.circuit.ramp import Ramp


@pytest.mark.parametrize(("rejected_of_ten", "grows"), [(0, True), (2, True), (5, False), (8, False)])
def test_room_is_taken_away_where_the_service_rejects_a_third_and_not_for_a_few_bad_requests(
    rejected_of_ten: int,
    grows: bool,
):
    ramp, good = Ramp(1), 0
    for second in range(10):
        for number in range(10):
            if number < rejected_of_ten:
                ramp.rejected(float(second))
            else:
                good += 1
                ramp.answered(float(second), second + 0.5, good)
    assert (ramp.room(10.0) >= 100) is grows
    assert ramp.is_steady(10.0) is grows
