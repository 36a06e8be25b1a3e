"""The report in Chromium: what a reader sees is not blank, in light and dark, wide and narrow."""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import zlib
from html import escape
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from paceline.dash.report import write_report
from report_pages import HYBRID, write_hybrid, write_run

_BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
_QUIET = ("quic", "background-networking", "component-update", "sync", "gpu")
_FLAGS = ["--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", *(f"--disable-{feature}" for feature in _QUIET)]
_LINE = {"light": (0x00, 0x67, 0xA8), "dark": (0x5C, 0xB8, 0xF0)}

pytestmark = pytest.mark.skipif(_BROWSER is None, reason="no Chromium is installed (apt-get install chromium)")


def browse(page: Path, profile: Path, *flags: str) -> str:
    """Chromium's output for a page; it and its children are ended after 60 seconds."""
    assert _BROWSER is not None
    command = [_BROWSER, *_FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as browser:
        try:
            out, said = browser.communicate(timeout=60)
        finally:
            if browser.poll() is None:
                os.killpg(browser.pid, signal.SIGKILL)
    assert browser.returncode == 0, said
    return out


def pixels(path: Path) -> npt.NDArray[np.uint8]:
    """The picture of an 8-bit RGB or RGBA file of PNG without interlacing, as height x width x 3."""
    data = path.read_bytes()
    at, packed, width, height, channels = 8, b"", 0, 0, 0
    while at < len(data):
        (length,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    picture = np.zeros((height, width, channels), np.uint8)
    for index, row in enumerate(rows):
        above = picture[index - 1] if index else np.zeros((width, channels), np.uint8)
        picture[index] = _unfiltered(int(row[0]), row[1:].reshape(width, channels), above)
    return picture[:, :, :3]


def _unfiltered(method: int, row: npt.NDArray[np.uint8], above: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    if method == 0:
        return row
    if method == 1:
        return np.cumsum(row, axis=0, dtype=np.uint8)
    if method == 2:
        return row + above
    wide, up, out = row.astype(int), above.astype(int), np.zeros(row.shape, int)
    left, corner = np.zeros(row.shape[1], int), np.zeros(row.shape[1], int)
    for x in range(len(wide)):
        guess = (left + up[x]) // 2 if method == 3 else _paeth(left, up[x], corner)
        out[x] = left = (wide[x] + guess) % 256
        corner = up[x]
    return out.astype(np.uint8)


def _paeth(left: npt.NDArray[np.int_], up: npt.NDArray[np.int_], corner: npt.NDArray[np.int_]) -> npt.NDArray[np.int_]:
    guess = left + up - corner
    by_left, by_up, by_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    return np.where((by_left <= by_up) & (by_left <= by_corner), left, np.where(by_up <= by_corner, up, corner))


@pytest.mark.parametrize(("theme", "width", "height"), [("light", 1240, 760), ("dark", 500, 1400)])
def test_the_curves_are_seen_across_the_page(tmp_path: Path, theme: str, width: int, height: int) -> None:
    page, shot = write_report(write_run(tmp_path / "run")), tmp_path / "shot.png"
    scheme = "--blink-settings=preferredColorScheme=" + ("0" if theme == "dark" else "1")
    browse(page, tmp_path / "profile", f"--window-size={width},{height}", f"--screenshot={shot}", scheme)
    picture = pixels(shot)
    assert picture.shape == (height, width, 3)
    charts = picture[330:]
    assert len(np.unique(charts.reshape(-1, 3), axis=0)) > 30
    is_line = (abs(charts.astype(int) - np.array(_LINE[theme])) < 12).all(axis=2)
    assert is_line.any(axis=0).mean() > 0.5
    assert picture[5, 5].mean() > 200 if theme == "light" else picture[5, 5].mean() < 60


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_paces_lie_as_coloured_stripes_behind_the_loss(tmp_path: Path, theme: str) -> None:
    page, shot = write_report(write_hybrid(tmp_path / "run")), tmp_path / "shot.png"
    scheme = "--blink-settings=preferredColorScheme=" + ("0" if theme == "dark" else "1")
    browse(page, tmp_path / "profile", "--window-size=1240,760", f"--screenshot={shot}", scheme)
    row = pixels(shot)[610, 60:420]
    colours, times = np.unique(row, axis=0, return_counts=True)
    wide = {tuple(colour) for colour, times in zip(colours.tolist(), times, strict=True) if times >= 40}
    assert len(wide) >= 3
    assert any(max(colour) - min(colour) > 8 for colour in wide)


def test_pointing_at_the_loss_tells_the_pace_and_why(tmp_path: Path) -> None:
    page = write_report(write_hybrid(tmp_path / "run"))
    pointed = """<script>
      const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect();
      const at = {bubbles: true, clientX: box.left + 0.45 * box.width, clientY: box.top + 9};
      plot.dispatchEvent(new PointerEvent("pointermove", at));
    </script>"""
    probe = tmp_path / "probe.html"
    unguarded = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())
    probe.write_text(unguarded.replace("</body>", f"{pointed}</body>"))
    document = browse(probe, tmp_path / "profile", "--dump-dom")
    tip = document.partition('id="tip"')[2].partition("<script")[0]
    assert "pace async" in tip
    assert escape(HYBRID[0].why, quote=False) in tip


def test_the_script_runs_under_the_pages_own_policy(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run"))
    document = browse(page, tmp_path / "profile", "--dump-dom", "--enable-logging=stderr")
    assert document.count('class="line c0"') == 6
    probe = tmp_path / "probe.html"
    probe.write_text(page.read_text().replace("</body>", "<script>document.title = 'injected'</script></body>"))
    assert "<title>injected</title>" not in browse(probe, tmp_path / "profile", "--dump-dom")
