"""Apache's patterns of addresses."""

from __future__ import annotations

import pytest

from rucola.acl.white_addresses import WhiteAddresses
from rucola.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "admitted", "refused"),
    [
        ("10.10.103.7", ["10.10.103.7", "::ffff:10.10.103.7"], ["10.10.103.70", "10.10.103.8", "?", ""]),
        ("10.1.2.3,10.1.2.5", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.{3,5}", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "110.1.2.0", "10.1.20.1"]),
        ("10.1.*.*", ["10.1.2.0", "10.1.255.255"], ["10.2.2.0"]),
        ("10.1.5-250.*", ["10.1.5.1", "10.1.250.9"], ["10.1.4.1", "10.1.251.1"]),
        ("10.1.2.1-20", ["10.1.2.1", "10.1.2.20"], ["10.1.2.21", "10.1.2.0"]),
        ("10.1.2.0-0", ["10.1.2.0"], ["10.1.2.1"]),
        ("*", ["10.1.2.3", "::1"], []),
        ("*.*.*.*", ["10.1.2.3"], []),
        ("*:*:*:*:*:*:*:*", ["::1"], []),
        ("", [], ["10.1.2.3"]),
        (
            "1050::5:600:300c:326b",
            ["1050:0:0:0:5:600:300c:326b", "1050::0005:0600:300C:326B"],
            ["1050::5:600:300c:326c"],
        ),
        ("1050::5:600:300c:{326a,326b}", ["1050::5:600:300c:326a"], ["1050::5:600:300c:326c"]),
        ("1050::5:600:300c:1-200", ["1050::5:600:300c:200"], ["1050::5:600:300c:201"]),
        ("1050::5:600:1-200:*", ["1050::5:600:1:ffff"], ["1050::5:600:201:1"]),
        ("1050:0:0:0:5:600:300c:*", ["1050::5:600:300c:1"], ["1050::5:600:300d:1"]),
    ],
)
def test_a_pattern_admits_the_addresses_that_apache_admits(
    pattern: str, admitted: list[str], refused: list[str]
) -> None:
    addresses = WhiteAddresses([pattern])
    assert [host for host in admitted + refused if addresses.admit(host)] == admitted
    assert [host for host in admitted + refused if addresses.admit(host)] == admitted  # remembered


@pytest.mark.parametrize(
    "pattern",
    [
        "10.1.2",
        "10.1.2.256",
        "10.1.5-9.7",
        "10.1.9-5.*",
        "10.1.2.{3,4",
        "10.1.2{3,4}",
        "host",
        "10.1.-5.*",
        "1::2::3:*",
    ],
)
def test_what_is_no_pattern_is_an_error(pattern: str) -> None:
    with pytest.raises(ConfigError):
        WhiteAddresses([pattern])


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rucola.acl.white_addresses.MAX_CACHED", 10)
    addresses = WhiteAddresses(["10.1.2.*"])
    assert all(addresses.admit(f"10.1.2.{last}") for last in range(100))
    assert len(addresses._known) <= 10
