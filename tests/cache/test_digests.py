"""What stores tell of the content of files, and the same of the bytes that came."""

import base64
import hashlib

import pytest

from gpupipe.cache.digests import Digest, compute_digest, find_crc32c, find_digest

CONTENT = b"123456789"
MD5 = hashlib.md5(CONTENT).digest()
CRC = bytes.fromhex("e3069283")
"""The check value of CRC-32C in Ross Williams' catalogue."""


def encode(value: bytes) -> str:
    return base64.b64encode(value).decode()


def test_where_a_store_says_an_md5() -> None:
    for info in (
        {"md5Hash": encode(MD5), "crc32c": encode(CRC)},
        {"Content-MD5": encode(MD5)},
        {"content_settings": {"content_md5": bytearray(MD5)}},
    ):
        assert find_digest(info) == Digest("MD5", MD5.hex())
    for value in ("", "no base64!", encode(b"short")):
        assert find_digest({"md5Hash": value}) is None


def test_the_hub_says_a_sha_256_of_files_in_lfs() -> None:
    digest = Digest("SHA256", hashlib.sha256(CONTENT).hexdigest())
    assert find_digest({"lfs": {"sha256": digest.value, "size": len(CONTENT)}}) == digest
    assert find_digest({"lfs": None}) is None
    assert compute_digest("SHA256", [CONTENT[:4], CONTENT[4:]]) == digest.value


def test_a_crc_is_taken_if_it_is_that_of_the_whole_file() -> None:
    pytest.importorskip("crc32c")
    assert find_digest({"crc32c": encode(CRC)}) == Digest("CRC32C", CRC.hex())
    assert find_crc32c(encode(CRC)) == Digest("CRC32C", CRC.hex())
    assert find_crc32c(encode(CRC) + "-3") is None  # of the CRCs of three parts
    assert find_crc32c(None) is None


def test_digests_of_blocks_are_those_of_the_whole() -> None:
    pytest.importorskip("crc32c")
    blocks = [CONTENT[:4], b"", CONTENT[4:]]
    assert compute_digest("MD5", blocks) == MD5.hex()
    assert compute_digest("CRC32C", blocks) == CRC.hex()
