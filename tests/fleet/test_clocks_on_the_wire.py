"""Kits that hold no more or not yet, and clocks that are off: with a real server. About half a minute on idle cores."""

from __future__ import annotations

import json
import os
import re
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cos2p import checksums
from cos2p.errors import ConfigError
from cos2p.fleet.kit import Kit, server_address
from tests.fleet.lab import PATIENCE, Lab, running_lab, small_recipe
from tests.fleet.test_faults_quick import answers

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

_OTHER_CLOCK = """
import datetime
real = datetime.datetime
class Wrong(real):
    @classmethod
    def now(cls, zone=None):
        return real.now(zone) + datetime.timedelta(days={days})
datetime.datetime = Wrong
"""


def test_a_kit_is_good_from_its_first_day_to_its_last(tmp_path: Path) -> None:
    with running_lab(tmp_path, small_recipe(2, rounds=2, fleet__heartbeat_seconds=60.0), absent=("dev-1",)) as lab:
        lab.start_hostile("dev-1", "tests.fleet.fast_clock")
        lab.start_run()
        a_clock_that_is_off_is_named_by_the_server(lab)
        assert lab.finish()["finished"] == "rounds"
        lab.machine("dev-2").kill()
        a_device_with_a_wrong_clock_says_so(lab, tmp_path)
        what_holds_no_more_or_not_yet_is_not_let_in(lab)


def a_clock_that_is_off_is_named_by_the_server(lab: Lab) -> None:
    """Its certificate holds all the same, so it takes part."""
    refused = lab.wait_for_event("refused", "dev-1")
    assert re.match(r"its clock is 3[3-6]\d\d s ahead of the server's", refused["reason"])  # less what the word took
    lab.wait_for_event("merged", "dev-1")
    assert not lab.events("refused", "dev-2")


def a_device_with_a_wrong_clock_says_so(lab: Lab, folder: Path) -> None:
    """A day slow: the certificate does not hold yet; 400 days fast: it holds no more."""
    kit = lab.machine("dev-2").kit
    for days in (-1, 400):
        (folder / "sitecustomize.py").write_text(_OTHER_CLOCK.format(days=days))
        words = joining_fails(kit, os.pathsep.join([str(folder), *sys.path[1:], os.environ.get("PYTHONPATH", "")]))
        assert f"clock says {datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}" in words
        assert "set the clock" in words


def joining_fails(kit: Kit, path: str) -> str:
    """What `cos2p fleet join` says; it ends at once, with the code of a mistake in what was given."""
    command = [str(Path(sys.executable).with_name("cos2p")), "fleet", "join", str(kit.folder)]
    surroundings = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def what_holds_no_more_or_not_yet_is_not_let_in(lab: Lab) -> None:
    """The right name and authority, and other days; whoever leaves our check out meets TLS."""
    kit, now = lab.machine("dev-2").kit, datetime.now(UTC)
    assert is_let_in(kit)
    for first, last in ((now - timedelta(30), now - timedelta(1)), (now + timedelta(1), now + timedelta(30))):
        reissue(lab.folder / "kits" / "authority", kit, first, last)
        assert not is_let_in(kit)
        words = joining_fails(kit, os.environ.get("PYTHONPATH", ""))
        assert f"holds from {first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M}" in words
        assert "--renew dev-2" in words
    reissue(lab.folder / "kits" / "authority", kit, now - timedelta(1), now + timedelta(30))
    assert is_let_in(kit)


def is_let_in(kit: Kit) -> bool:
    """Whether the server speaks with whoever has the certificate of this kit."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(kit.startup / "client.crt", kit.startup / "client.key")
    return answers(context, *server_address(kit))


def reissue(authority: Path, kit: Kit, first: datetime, last: datetime) -> None:
    """The kit's certificate for other days, signed by the fleet's own authority."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    (state,) = authority.rglob("cert.json")
    root = serialization.load_pem_private_key(json.loads(state.read_text())["root_pri_key"].encode(), None)
    old = x509.load_pem_x509_certificate((kit.startup / "client.crt").read_bytes())
    builder = x509.CertificateBuilder(
        issuer_name=old.issuer, subject_name=old.subject, public_key=old.public_key(),
        serial_number=x509.random_serial_number(), not_valid_before=first, not_valid_after=last,
    )  # fmt: skip
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    made = builder.sign(root, hashes.SHA256())  # type: ignore[arg-type]
    (kit.startup / "client.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (kit.startup / checksums.MANIFEST).unlink(missing_ok=True)  # as its error says to whoever changes a kit
