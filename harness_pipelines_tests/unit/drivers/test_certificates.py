"""What servers and drivers say of certificates, by the names of the harness. The words are theirs, as recorded."""

from __future__ import annotations

import psycopg
import pytest

from harness_pipelines.drivers.certificates import CertificateRefused, why_refused
from harness_pipelines.drivers.postgres import PostgresUnreachable, explained
from harness_pipelines.engines.spark.kafka import java_properties
from harness_pipelines.errors import UsageError

DSN = "host=/tmp user=me password=rosebud-4711 sslmode=verify-full"
EXPIRED, HOST = "its certificate has expired", "its certificate is made for another host"
NOBODY = "its certificate is signed by an authority that is not trusted here"
OURS = "it does not accept the certificate of this client"
WANTED = "it asks for a certificate of this client"
LIBPQ = 'connection failed: connection to server at "127.0.0.1", port 5432 failed: '
KAFKA = "ssl://kafka-1:9093/bootstrap: Receive failed: error:0A000418:SSL routines::"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (LIBPQ + "SSL error: certificate verify failed", "its certificate is not accepted"),
        (LIBPQ + 'server certificate for "db.elsewhere" does not match host name "db"', HOST),
        (LIBPQ + "SSL error: tlsv13 alert certificate required", WANTED),
        (LIBPQ + "SSL error: tlsv1 alert unknown ca", f"{OURS}: it does not trust who signed it"),
        (LIBPQ + "SSL error: ssl/tls alert certificate expired", f"{OURS}: it has expired"),
        (LIBPQ + "SSL error: sslv3 alert certificate expired", f"{OURS}: it has expired"),
        (LIBPQ + "FATAL:  connection requires a valid client certificate", WANTED),
        (LIBPQ + 'FATAL:  certificate authentication failed for user "reader"', f"{OURS} for this user"),
        (LIBPQ + 'root certificate file "/nope" does not exist', "a file of certificates cannot be used"),
        (LIBPQ + 'could not read certificate file "/a.crt": no start line', "a file of certificates cannot be used"),
        (LIBPQ + 'could not load private key file "/a.key": bad', "a file of certificates cannot be used"),
        (
            LIBPQ + 'private key file "/a.key" has group or world access; file must have permissions u=rw (0600)',
            "a file of certificates cannot be used",
        ),
        (LIBPQ + "server does not support SSL, but SSL was required", "it does not speak TLS, which is asked for"),
        (KAFKA + "tlsv13 alert certificate required: SSL alert number 116 (after 0ms)", WANTED),
        (KAFKA + "ssl/tls alert bad certificate: SSL alert number 42", OURS),
        (KAFKA + "tlsv1 alert unknown ca: SSL alert number 48", f"{OURS}: it does not trust who signed it"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)", EXPIRED),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: Hostname mismatch, certificate is not valid "
            "for 'localhost'. (_ssl.c:1006)",
            HOST,
        ),
        ("certificate verify failed: IP address mismatch, certificate is not valid for '127.0.0.1'", HOST),
        ("certificate verify failed: unable to get local issuer certificate", NOBODY),
        ("certificate verify failed: self-signed certificate in certificate chain", NOBODY),
        ("certificate verify failed: self signed certificate", NOBODY),
        ("certificate verify failed: certificate signature failure (_ssl.c:1006)", NOBODY),
        (LIBPQ + "SSL error: provider signature failure", NOBODY),
        ("PKIX path validation failed: java.security.cert.CertPathValidatorException: signature check failed", NOBODY),
        ("certificate verify failed: certificate is not yet valid", "its certificate is not valid yet"),
        ("PKIX path validation failed: java.security.cert.CertificateExpiredException: NotAfter: Tue", EXPIRED),
        ("PKIX path building failed: unable to find valid certification path to requested target", NOBODY),
        ("The hostname localhost could not be verified by hostnameverifier PgjdbcHostnameVerifier.", HOST),
        ("java.security.cert.CertificateException: No name matching localhost found", HOST),
        ("No subject alternative DNS name matching localhost found.", HOST),
        ("SSL error: Received fatal alert: bad_certificate", OURS),
        ("Received fatal alert: certificate_required", WANTED),
        ("Received fatal alert: unknown_ca", f"{OURS}: it does not trust who signed it"),
    ],
)
def test_each_driver_s_words_have_one_meaning(said: str, why: str):
    assert why_refused(said) == why
    assert why_refused(said.upper()) == why


@pytest.mark.parametrize(
    "said",
    [
        LIBPQ + "Connection refused\n\tIs the server running on that host and accepting TCP/IP connections?",
        LIBPQ + "SSL connection has been closed unexpectedly",
        LIBPQ + "SSL SYSCALL error: EOF detected",
        'FATAL:  password authentication failed for user "reader"',
        "ssl://kafka-1:9093/1: Connect to ipv4#10.0.0.1:9093 failed: Connection refused",
        "ssl://kafka-1:9093/1: Disconnected (after 3001ms in state UP)",
        "server closed the connection unexpectedly",
    ],
)
def test_an_outage_is_not_taken_for_a_certificate(said: str):
    assert why_refused(said) is None


def test_a_database_whose_certificate_is_refused_is_not_waited_for_as_one_that_is_away():
    with pytest.raises(CertificateRefused, match=rf"{HOST}.*sslrootcert") as caught, explained(DSN):
        raise psycopg.OperationalError(LIBPQ + 'server certificate for "a" does not match host name "b"')
    assert "rosebud" not in str(caught.value)
    with pytest.raises(PostgresUnreachable), explained(DSN):
        raise psycopg.OperationalError(LIBPQ + "SSL SYSCALL error: EOF detected")


def test_spark_s_reader_gets_key_and_certificate_as_java_takes_them(tmp_path):
    certificate, key = tmp_path / "a.crt", tmp_path / "a.key"
    certificate.write_text("-----BEGIN CERTIFICATE-----\n...")
    key.write_text("-----BEGIN PRIVATE KEY-----\n...")
    assert java_properties(
        {
            "security.protocol": "SSL",
            "ssl.ca.location": "/srv/ca.pem",
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(key),
            "ssl.endpoint.identification.algorithm": "none",
        }
    ) == {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/srv/ca.pem",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": certificate.read_text(),
        "ssl.keystore.key": key.read_text(),
        "ssl.endpoint.identification.algorithm": "",
    }


def test_each_job_of_spark_gets_the_key_and_the_certificate_that_are_there_now(tmp_path):
    files = {f"ssl.{kind}.location": tmp_path / kind for kind in ("certificate", "key")}
    for content in ("-----BEGIN PRIVATE KEY-----\nfirst", "-----BEGIN PRIVATE KEY-----\nsecond"):
        for file in files.values():
            file.write_text(content)
        found = java_properties({name: str(file) for name, file in files.items()})
        assert (found["ssl.keystore.key"], found["ssl.keystore.certificate.chain"]) == (content, content)


def test_spark_s_reader_names_a_key_that_java_does_not_take(tmp_path):
    key = tmp_path / "a.key"
    key.write_text("-----BEGIN RSA PRIVATE KEY-----\nsecret-base64")
    with pytest.raises(UsageError, match="not in PKCS#8.*openssl pkcs8 -topk8") as caught:
        java_properties({"ssl.key.location": str(key)})
    assert "secret-base64" not in str(caught.value)
    with pytest.raises(UsageError, match=r"'ssl.certificate.location'.*the PEM file .* cannot be read"):
        java_properties({"ssl.certificate.location": str(tmp_path / "missing.crt")})
