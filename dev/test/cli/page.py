"""page.py: the part of test_exchange.sh that opens the page of membership.py in a headless Chromium.

    page.py PAGE.html [FOLDER]     FOLDER: also write pictures of the page there

Prints one line per check, starting with "ok" or "FAILED".
"""

import math
import sys
from itertools import combinations
from pathlib import Path

from browser import Browser, find
from script_calls import check

SIZES = ((420, 900), (1280, 900))
DISTINCT = 0.055       # smallest distance of two heads' colors in OKLab; 0.02 is just noticeable
READABLE = 4.5         # contrast of text (WCAG 2, level AA)


def linear(color):
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in color)]


def contrast(one, other):
    light = sorted(sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(color))) for color in (one, other))
    return (light[1] + 0.05) / (light[0] + 0.05)


def oklab(color):
    r, g, b = linear(color)
    l, m, s = (math.cbrt(x) for x in (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
                                      0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
                                      0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b))
    return (0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
            1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
            0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s)


# The colors as the browser draws them: [page, text, head 1, head 2, …]
COLORS = """(() => {
  const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const style = getComputedStyle(document.body);
  return [style.backgroundColor, style.color, ...Array.from({length: H}, (_, h) => color(h, 1))].map(one => {
    pen.fillStyle = one;
    pen.fillRect(0, 0, 1, 1);
    return Array.from(pen.getImageData(0, 0, 1, 1).data.slice(0, 3));
  });
})()"""


def check_colors(browser, where):
    page, ink, *heads = browser.value(COLORS)
    check(f"{where}: text on the page has a contrast of {contrast(page, ink):.1f}", contrast(page, ink) >= 7)
    least = min(contrast(ink, head) for head in heads)
    check(f"{where}: text on the color of a head has a contrast of {least:.2f}", least >= READABLE)
    near = min((math.dist(oklab(a), oklab(b)), i + 1, j + 1) for (i, a), (j, b) in combinations(enumerate(heads), 2))
    check(f"{where}: heads {near[1]} and {near[2]} of {len(heads)} have the most similar colors, {near[0]:.3f}",
          near[0] >= DISTINCT)
    return page


def check_layout(browser, where, width):
    check(f"{where}: no errors: {browser.errors}", not browser.errors)
    check(f"{where}: nothing is wider than the window",
          browser.value("document.documentElement.scrollWidth") <= width)
    check(f"{where}: opens at the start given in the data",
          browser.value("[layer, token].join() === data.start.join() && spans[token].className === 'here'"))
    ends = browser.value("[...document.querySelectorAll('#heads tr')]"
                         ".map(row => row.cells[1].getBoundingClientRect().right)")
    check(f"{where}: the rows of the table are aligned: {set(ends)}", len(set(ends)) == 1 and len(ends) > 2)
    offset = browser.value("""(() => {
        const box = id => document.getElementById(id).getBoundingClientRect();
        const middle = one => one.top + one.height / 2, row = box("row"), map = box("map");
        const label = document.querySelector("#numbers .here").getBoundingClientRect();
        return Math.max(Math.abs(middle(row) - map.top - (layer + .5) * map.height / L),
                        Math.abs(middle(label) - middle(row)));
    })()""")
    check(f"{where}: the frame and the number of the layer are at its row, to {offset:.1f} px", offset <= 1)
    check(f"{where}: nothing has a focus frame", browser.value("document.activeElement === document.body"))


def check_keys(browser):
    at = browser.value("[layer, token]")
    browser.press("ArrowRight" if at[1] == 0 else "ArrowLeft")
    browser.press("ArrowDown" if at[0] == 0 else "ArrowUp")
    moved = browser.value("[layer, token]")
    check(f"arrow keys: {at} to {moved}", [abs(a - b) for a, b in zip(at, moved)] == [1, 1])
    browser.press("End")
    check("End: the last token", browser.value("token === T - 1 && spans[T - 1].className === 'here'"))
    browser.value("window.scrollTo(0, 0)")
    browser.click("#map", 0.001, 0.999)
    check("a click on the strip selects layer and token", browser.value("layer === L - 1 && token === 0"))
    browser.press("m")
    check("m: the other mode", browser.value("mode") == browser.value("data.initial ? 1 : 0"))
    browser.value("document.querySelector('#heads tr.head').click()")
    check("a click on a head selects it", browser.value("selected === 0 && "
          "document.querySelector('#heads tr.selected').cells[0].textContent === '1'"))
    explained = browser.value("!data.initial || byId('scale').textContent.includes('before training')")
    check("the tick is explained", explained)


def main():
    page, folder = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with Browser(find()) as browser:
        for width, height in SIZES:
            backgrounds = []
            for dark in (False, True):
                where = f"{page.name}, {width} px, {'dark' if dark else 'light'}"
                browser.show(page, width, height, dark)
                check_layout(browser, where, width)
                backgrounds.append(check_colors(browser, where))
                if folder:
                    browser.picture(folder / f"{page.stem}_{width}_{'dark' if dark else 'light'}.png")
            check(f"{page.name}: dark page {backgrounds}", backgrounds[0][0] > 200 > 60 > backgrounds[1][0])
        token = "getComputedStyle(spans[token]).backgroundColor"
        before = browser.value(token)
        browser.color_scheme(False)
        after = browser.value(f"""new Promise(done => {{
            const end = Date.now() + 10000;
            const look = () => {token} !== "{before}" || Date.now() > end ? done({token}) : setTimeout(look, 20);
            look();
        }})""")
        check("the colors follow the system without a reload", after != before)
        check_keys(browser)
        check(f"no errors: {browser.errors}", not browser.errors)


if __name__ == "__main__":
    main()
