"""The graph of a forecast shows every process and hop, and is well-formed for any names."""

from xml.etree import ElementTree as ET

from stagepipe.forecast import render_mermaid, render_svg


def test_mermaid_has_a_line_for_each_process_and_hop(forecast):
    first, *lines = render_mermaid(forecast).splitlines()
    assert first == "flowchart TD"
    assert lines[1] == '  p1["decode + crop<br/>2 workers, 1.5 ms per item<br/>80 MB"]'
    assert [line.split("|")[0].strip() for line in lines[4:]] == ["p0 -->", "p1 -->", "p2 -->"]
    assert "image 602 kB: shared memory" in lines[5]
    assert "no message seen" in lines[6]
    assert "#quot;quoted#quot; &lt;name> &amp; more" in lines[2]


def test_the_svg_is_well_formed_and_shows_every_process_and_hop(forecast):
    root = ET.fromstring(render_svg(forecast))
    texts = " ".join(element.text or "" for element in root.iter() if element.tag.endswith("text"))
    for word in ("source", "decode + crop", "2 workers", 'a "quoted" <name> & more', "sink", "image 602 kB"):
        assert word in texts
    assert root.get("viewBox")
