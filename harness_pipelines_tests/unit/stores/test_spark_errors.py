"""What Spark Connect raises when its session is closed by another thread, by the names of the harness."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from harness_pipelines.stores.spark import SparkAway, is_closed_channel
from harness_pipelines.stores.spark_write import explained

MOVE: Any = SimpleNamespace(move_id=7, attempt=2)
TABLE: Any = SimpleNamespace(name="shop.orders")


@pytest.fixture
def closed() -> ValueError:
    """What gRPC itself raises for a call on a channel that was closed."""
    channel = grpc.insecure_channel("127.0.0.1:1")
    call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
    channel.close()
    with pytest.raises(ValueError, match="closed") as raised:
        call(b"")
    return raised.value


def test_a_session_that_another_stage_closed_is_waited_for(closed: ValueError):
    assert is_closed_channel(closed)
    wanted = "shop.orders: the Spark session was closed under move 7, attempt 2"
    with pytest.raises(SparkAway, match=wanted), explained(TABLE, MOVE):
        raise closed


def test_any_other_wrong_value_is_a_defect():
    with pytest.raises(ValueError, match="no such thing"), explained(TABLE, MOVE):
        raise ValueError("no such thing")
