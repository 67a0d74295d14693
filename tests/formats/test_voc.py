"""VOC's XML: what is read, and that no entity is."""

import time

import pytest

from gpupipe.formats.voc import MAX_BYTES, parse_voc
from helpers.coco_files import voc_xml

XML = voc_xml("a", (60, 40), ("dog", 1, [8, 6.5, 30, 20]), ("cat", 0, [1, 1, 60, 40]))


def test_objects_are_read_and_their_parts_are_not() -> None:
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part></object>"
    image = parse_voc(XML.replace("</object>", part).encode())
    assert image.size == (40, 60)
    assert image.names == ["dog", "cat"]
    assert image.boxes.tolist() == [[8, 6.5, 30, 20], [1, 1, 60, 40]]
    assert image.is_difficult.tolist() == [True, False]


def test_an_image_may_have_no_objects_and_no_size() -> None:
    image = parse_voc(b"<annotation/>")
    assert image.size == (0, 0)
    assert image.boxes.shape == (0, 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no XML"),
        (XML[:200], "no XML"),
        ("<a/>", "<annotation>"),
        (XML.replace("6.5", "six"), "object 1: <ymin> is 'six'"),
        (XML.replace("6.5", "nan"), "object 1: <ymin> is 'nan'"),
        (XML.replace("6.5", ""), "object 1: it has no <ymin>"),
        (XML.replace("<name>cat</name>", ""), "object 2: it has no <name>"),
        (XML.replace("bndbox", "box"), "object 1: it has no <bndbox>"),
        (XML.replace("<width>60", "<width>-1"), "size"),
        ('<?xml version="1.0" encoding="nope"?><annotation/>', "no XML"),
        ("<a>" * 100_000, "no XML"),
        (" " * (MAX_BYTES + 1), "bytes"),
    ],
)
def test_what_is_wrong_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_voc(text.encode())


def test_entities_are_never_expanded() -> None:
    lines = ['<!ENTITY e0 "lol">']
    lines += [f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12)]
    bomb = f"<!DOCTYPE annotation [{''.join(lines)}]><annotation>&e11;</annotation>"
    outside = '<!DOCTYPE annotation [<!ENTITY f SYSTEM "file:///etc/hostname">]>'
    outside += "<annotation>&f;</annotation>"
    started = time.monotonic()
    for text in (
        bomb,
        outside,
        '<!DOCTYPE annotation SYSTEM "http://127.0.0.1:1/x.dtd"><annotation/>',
    ):
        with pytest.raises(ValueError, match="DOCTYPE"):
            parse_voc(text.encode())
    assert time.monotonic() - started < 10
