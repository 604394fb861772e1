"""Secrets are hidden wherever their place shows that they are secrets; what is no secret stays readable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines import secret
from harness_pipelines.errors import TryAgain, UsageError
from harness_pipelines.secret import redact

CANARY = "c4nary"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:{}@ss{}@h/db",
        "postgresql://u:{}/x@h:5/db",
        "kafka+ssl://u:{}:{}@h",
        "https://{}@registry/x",
        "jdbc:postgresql://h/db?user=u&password={}",
        r"password='it\'s {}' user=me",
        r"password=it\'s{} user=me",
        "host=h password={}&x;{} user=me",
        "passphrase = {}",
        "password => {}",
        "user=x,password={},host=y",
        '{{"password":"{}","a":1}}',
        '"password" : "{}\\"{}"',
        "{{'password': '{}'}}",
        r'{{"x":"{{\"password\": \"{}\"}}"}}',
        "('sasl.password', '{}')",
        "<password>{}</password>",
        "password:\n  {}",
        "PGPASSWORD={}",
        "export HARNESS_KAFKA_SASL_PASSWORD={}",
        "--password {}",
        "--api-key={}",
        "api_key={}",
        "apiKey: {}",
        "x-api-key: {}",
        "Authorization: Bearer {}.{}",
        "authorization=Basic {}{}==",
        "Cookie: session={}",
        "aws_secret_access_key={}",
        "s3.secret-access-key={}",
        "s3.session-token={}",
        "fs.s3a.secret.key={}",
        "AWS_SESSION_TOKEN={}",
        "https://b.s3.example/k?X-Amz-Credential={}&X-Amz-Signature={}&X-Amz-Security-Token={}&x=1",
        "https://storage.example/k?X-Goog-Signature={}",
        "https://a.blob.example/c?sv=2022&sig={}%3D&se=1",
        "AccountName=a;AccountKey={}==;EndpointSuffix=core",
        "fs.azure.account.key.NAME.dfs.core.windows.net={}",
        "fs.azure.sas.container.account={}",
        "SharedAccessKey={}",
        "sasl.password={}",
        "ssl.key.password={}",
        "ssl.key.pem={}",
        "basic.auth.user.info=u:{}",
        'sasl.jaas.config=x.PlainLoginModule required username="u" password="{}";',
        "sc://h:1/;token={};user_id=3",
        "clientSecret: '{}'",
        "oauth.token={}",
        "privateKey={}",
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        "eyJhbGciOi.{}abc.{}",
        "CREATE ROLE x LOGIN PASSWORD '{}'",
        "ALTER USER x IDENTIFIED BY '{}'",
        "ENCRYPTED PASSWORD $$ {} $$",
        'options {{ key: "sasl.password"\n  value: "{}" }}',
        'key: "kafka.sasl.jaas.config" value: "x required {}"',
        "password := {}",
        "password->{}",
        "https%3A%2F%2Fh%2F%3Fpassword%3D{}",
        r"password\u003d{}",
        "password&#61;{}",
        "https://hooks.slack.com/services/T0/B0/{}",
        "https://discord.com/api/webhooks/1/{}",
        "https://me.webhook.office.com/webhookb2/{}",
        "ghp_{}0123456789{}",
        "glpat-{}{}",
        "xoxb-123-{}",
        "hvs.{}0123456789",
        "sk-proj-{}0123456789",
    ],
)
def test_a_secret_is_hidden(text):
    said = text.replace("{}", CANARY).replace("{{", "{").replace("}}", "}")

    assert CANARY not in redact(said)
    assert CANARY not in str(TryAgain(said))
    assert CANARY not in repr(UsageError(said))


def test_a_token_of_the_server_is_hidden_wherever_it_stands():
    token = f"harness_{'aB3-_' * 8}abc"
    assert redact(f"'{token}' names no token; SELECT '{token}'") == "'***' names no token; SELECT '***'"
    assert redact(f"harness_orders, {token}x and {token[:-1]}") == f"harness_orders, {token}x and {token[:-1]}"


def test_what_is_no_secret_stays_readable():
    assert (
        redact("postgresql://me:pass@db/x?sslpassword=abc&sslmode=require")
        == "postgresql://me:***@db/x?sslpassword=***&sslmode=require"
    )
    assert redact("host=db password='a b' user=me") == "host=db password=*** user=me"
    assert (
        redact("AccountName=a;AccountKey=k==;EndpointSuffix=core") == "AccountName=a;AccountKey=***;EndpointSuffix=core"
    )
    for text in (
        "columns.password: it should be a type, such as `string`",
        "the first pass: 5 rows",
        "key: [order_id]",
        "http://h:80/x",
        'password authentication failed for user "me"',
        "postgresql://me@db/x?sslmode=require",
        "partition 0: offset 5, key=3",
        "compass: north, bypass=true",
        "no column 'password'; columns: id, 'name'",
        "task-0 of the move, ask-a-friend",
    ):
        assert redact(text) == text


@pytest.mark.parametrize(
    "part",
    [
        "a.",
        "://",
        "http://a:",
        "password='",
        '\\"',
        "?a.%",
        "<password>",
        "--a",
        "eyJabcdefg.",
        "-----BEGIN PRIVATE KEY-----",
        'key: "password" value: ',
        "password '",
        "password $a$",
        "sk-",
        "password\\u",
    ],
)
def test_a_hostile_text_takes_no_longer_than_its_length_asks_for(part):
    assert redact(part * (50_000 // len(part)))  # a rule that reads the rest again at each place would take minutes


PIECES = (
    "pass", "password", "PassWd", "sig", "sas", "token", "auth", "cookie", "key_pem", "key", "identified by", "api-key",
    "credentials", "user.info", "=", ":", ": ", "=>", '"', "'", "?", "&", "--", "<", ">", "$$", " ", "\n", "x1", "\\",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_a_text_without_any_key_has_no_pair_of_a_key_and_a_secret(text: str):
    """So the rules of pairs are left out for it."""
    if not secret._ANY_KEY.search(text):
        assert not any(rule.search(text) for rule in secret._PAIRS)
