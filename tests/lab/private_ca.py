"""A server of objects by TLS, whose certificate a private authority has signed."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificates(folder: Path) -> tuple[Path, Path]:
    """Write an authority's certificate, and key and certificate of a server; return both files.

    The server's is for 127.0.0.1 alone.
    """
    folder.mkdir(exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab server")])
    now = datetime.now(UTC)

    def signed(name: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_ca: bool) -> bytes:
        address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        made = x509.CertificateBuilder().subject_name(name).issuer_name(issuer)
        made = made.public_key(key.public_key()).serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - timedelta(days=1))
        made = made.not_valid_after(now + timedelta(days=1))
        made = made.add_extension(x509.BasicConstraints(is_ca, None), critical=True)
        if not is_ca:
            made = made.add_extension(address, critical=False)
        whole = made.sign(authority, hashes.SHA256())
        return whole.public_bytes(serialization.Encoding.PEM)

    ca, both = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(signed(issuer, authority, is_ca=True))
    key = server.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    both.write_bytes(key + signed(subject, server, is_ca=False))
    return ca, both


class _Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Length": "3",
            "ETag": '"0"',
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"abc")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def tls_server(certificate: Path) -> Iterator[str]:
    """Serve "abc" as every object; yield the server's URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Objects)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
