"""Over TLS, as every real cluster: streams are ended from outside, and a strange certificate is told."""

import datetime
import ipaddress
import socket
import ssl
import threading
import time

import kubernetes
import pytest
import urllib3
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from components.cluster.client import Cluster, patiently
from components.cluster.errors import ClusterRefused
from components.cluster.streams import Stream

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A file with a certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cluster")])
    now = datetime.datetime.now(datetime.UTC)
    addresses = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + datetime.timedelta(hours=1))
    signed = builder.add_extension(addresses, critical=False).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("tls") / "cluster.pem"
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(signed.public_bytes(pem) + private)
    return path


@pytest.fixture
def server(certificate):
    """A server that begins every answer and never ends one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve():
        while True:
            try:
                raw, _ = listener.accept()
            except OSError:
                return
            try:
                connection = context.wrap_socket(raw, server_side=True)
                connection.recv(4096)
                connection.sendall(HEAD + b"4\r\none\n\r\n")
                kept.append(connection)
            except ssl.SSLError:
                raw.close()

    threading.Thread(target=serve, daemon=True).start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    for connection in kept:
        connection.close()


def connection_to(url, authority):
    configuration = kubernetes.client.Configuration(host=url)
    configuration.ssl_ca_cert = authority
    configuration.retries = False
    return Cluster(kubernetes.client.ApiClient(configuration), "demo", "a test")


def test_a_reader_that_waits_is_woken_up(server, certificate):
    cluster = connection_to(server, str(certificate))
    stream, read = Stream(), []
    response = cluster.core.read_namespaced_pod_log("pod", "demo", follow=True, _preload_content=False)

    def reader():
        try:
            read.extend(stream.chunks(response))
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            read.append(error)

    thread = threading.Thread(target=reader)
    thread.start()
    time.sleep(0.2)
    stream.end()
    thread.join(1)
    assert not thread.is_alive() and read[0] == b"one\n"
    assert isinstance(read[-1], urllib3.exceptions.HTTPError), "what the followers expect of a broken stream"


def test_a_certificate_of_somebody_else_is_not_tried_again(server):
    cluster = connection_to(server, None)
    begin = time.monotonic()
    with pytest.raises(ClusterRefused, match=r"certificate is not trusted \(SSLError .+ certificate-authority$"):
        patiently("list pods", lambda: cluster.core.list_namespaced_pod("demo"))
    assert time.monotonic() - begin < 2
