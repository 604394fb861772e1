"""The schema registry's client, against a registry over HTTP."""

from __future__ import annotations

from contextlib import closing

import pytest

from harness_pipelines.errors import Recovery, TryAgain, UsageError
from harness_pipelines.sources.registry import (
    ABSENT_S,
    Registry,
    RegistryAddress,
    RegistryAway,
    RegistryLoginFailed,
    RegistryPropertyRefused,
)
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.registry import serving

QUICK = {"timeout": "2"}
LONG = '{"type": "long"}'


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server():
    with serving() as found:
        yield found


def test_a_schema_is_asked_for_once_and_kept_when_it_is_deleted(server):
    number = server.register("a-value", LONG)
    registry = Registry(server.url, QUICK)

    first = registry.by_id(number)
    server.delete("a-value", permanent=True)

    assert first is not None and (first.kind, first.text) == ("AVRO", LONG)
    assert registry.by_id(number) == first
    assert server.requests == {f"/schemas/ids/{number}": 1}
    registry.close()


def test_references_come_with_their_own_in_the_order_in_which_they_are_needed(server):
    server.register("money", "c", kind="PROTOBUF")
    server.register(
        "item", "b", kind="PROTOBUF", references=[{"name": "money.proto", "subject": "money", "version": 1}]
    )
    number = server.register(
        "order-value", "a", kind="PROTOBUF",
        references=[
            {"name": "shop/item.proto", "subject": "item", "version": 1},
            {"name": "money.proto", "subject": "money", "version": 1},
        ],
    )  # fmt: skip
    server.delete("money")  # softly: records that need it are still there

    found = Registry(server.url, QUICK).by_id(number)

    assert found is not None and found.kind == "PROTOBUF" and found.lacks is None
    assert list(found.references.items()) == [("money.proto", "c"), ("shop/item.proto", "b")]


def test_a_reference_that_is_gone_is_named(server):
    references = [{"name": "money.proto", "subject": "money", "version": 3}]
    number = server.register("order-value", "a", kind="PROTOBUF", references=references)

    found = Registry(server.url, QUICK).by_id(number)

    assert found is not None and found.lacks == "money.proto (subject money, version 3)"


def test_a_schema_that_is_unknown_is_asked_for_again_after_a_while(server):
    clock = Clock()
    registry = Registry(server.url, QUICK, clock=clock)

    assert registry.by_id(1) is None
    number = server.register("a-value", LONG)
    assert (number, registry.by_id(1)) == (1, None)
    clock.now = ABSENT_S
    assert registry.by_id(1) is not None
    assert server.requests == {"/schemas/ids/1": 2}


def test_a_registry_that_is_away_says_try_again_and_is_asked_again(server):
    number = server.register("a-value", LONG)
    registry = Registry(server.url, QUICK)
    server.fail_with = 500
    with pytest.raises(RegistryAway, match=r"no answer while asking for schema 1 \(Error in the backend.*HTTP 500"):
        registry.by_id(number)
    server.fail_with = None
    assert registry.by_id(number) is not None
    server.close()
    assert registry.by_id(number) is not None  # it is known
    with pytest.raises(RegistryAway, match="asking for schema 2") as caught:
        registry.by_id(2)
    assert isinstance(caught.value, TryAgain) and caught.value.exit_code == 75
    server._server.server_close()


def test_a_slow_registry_is_not_waited_for_longer_than_the_timeout(server):
    server.delay_s = 1.0
    with pytest.raises(RegistryAway, match="Timeout"):
        Registry(server.url, {"timeout": "0.2"}).by_id(1)


def test_what_is_no_registry_refuses_no_record(server):
    """A wrong path answers 404 too, but not with the registry's own code."""
    with pytest.raises(RegistryAway, match="HTTP 404, code 404"):
        Registry(f"{server.url}/elsewhere", QUICK).by_id(1)


@pytest.mark.parametrize(
    "answer",
    [
        {}, [], None, "x", {"schema": None}, {"schema": 5}, {"schema": ""}, {"error_code": 401, "message": "no"},
        {"schema": '"long"', "schemaType": 7}, {"schema": '"long"', "references": 7},
        {"schema": '"long"', "references": [{}]},
        {"schema": '"long"', "references": [{"name": "a", "subject": "b", "version": "x"}]},
    ],
)  # fmt: skip
def test_an_answer_that_is_no_schema_stands_for_none(server, answer):
    number = server.register("a-value", LONG)
    registry = Registry(server.url, QUICK)
    server.fail_with, server.answer_with = 200, answer
    with pytest.raises(RegistryAway, match="gave no answer while asking for schema 1"):
        registry.by_id(number)
    server.fail_with = None
    found = registry.by_id(number)
    assert found is not None and found.text == LONG


def test_a_wrong_password_is_named_and_never_shown():
    with serving(login="me:right") as server:
        number = server.register("a-value", LONG)
        found = Registry(server.url, {**QUICK, "basic.auth.user.info": "me:right"}).by_id(number)
        assert found is not None
        for registry in (
            Registry(server.url, {**QUICK, "basic.auth.user.info": "me:wr0ng"}),
            Registry(server.url.replace("//", "//me:wr0ng@"), QUICK),
        ):
            with pytest.raises(RegistryLoginFailed, match="HARNESS_REGISTRY_BASIC_AUTH_USER_INFO") as caught:
                registry.by_id(number)
            assert caught.value.recovery is Recovery.NEVER
            assert "wr0ng" not in str(caught.value) and "wr0ng" not in repr(registry)


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"basic.auth": "me:s3cret"}, "Unrecognized properties: basic.auth"),
        ({"timeout": "soon"}, "HARNESS_REGISTRY_TIMEOUT is 'soon'; expected a number"),
        ({"basic.auth.user.info": "s3cret"}, "must be in the form"),
        ({"ssl.ca.location": "/none/ca.pem"}, "HARNESS_REGISTRY_"),
    ],
)
def test_a_property_that_the_client_does_not_take_is_named(properties, message):
    with pytest.raises(RegistryPropertyRefused, match=message) as caught:
        Registry("http://127.0.0.1:1", properties).by_id(1)
    assert "s3cret" not in str(caught.value)


def test_settings_name_the_registry_and_show_no_secret():
    settings = Settings.from_env(
        {"HARNESS_REGISTRY": "http://me:s3cret@r:8081", "HARNESS_REGISTRY_BASIC_AUTH_USER_INFO": "me:s3cret"}
    )

    assert settings.registry == "http://me:s3cret@r:8081"
    assert settings.registry_properties == {"basic.auth.user.info": "me:s3cret"}
    assert "s3cret" not in repr(settings) and "s3cret" not in repr(RegistryAddress.of(settings))


def test_without_a_registry_a_record_that_needs_one_says_so():
    with pytest.raises(UsageError, match="record names schema 7, and no schema registry is known: set HARNESS_REGIST"):
        RegistryAddress.of(Settings.from_env({})).open().by_id(7)


def test_a_login_that_the_registry_takes_no_more_is_named_and_goes_on_once_it_is_taken_again():
    with serving(login="me:first") as server:
        known, other = server.register("a-value", LONG), server.register("b-value", '{"type": "string"}')
        with closing(Registry(server.url, {**QUICK, "basic.auth.user.info": "me:first"})) as registry:
            assert registry.by_id(known) is not None
            server.login = "me:second"
            for _ in range(2):
                with pytest.raises(RegistryLoginFailed, match="another login it takes when it is started again"):
                    registry.by_id(other)
                assert registry.by_id(known) is not None  # what is known needs no login
            server.login = "me:first"
            assert registry.by_id(other) is not None
