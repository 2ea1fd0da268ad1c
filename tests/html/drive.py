#!/usr/bin/env python3
"""Opens HTML reports in headless Chromium, one after the other, uses each as a
reader would, and takes screenshots of it.

    drive.py FOLDER REPORT.html...

The screenshots of a report go to a folder of its name in FOLDER. Of several runs it looks at the overview, then opens the first of them. Fails
with one line if the page says anything on the console, asks for anything over
the network, does not begin at its verdict, does not answer to a click or a key
where the reader looks, or is wider than a phone. Prints what it saw of each as a
list in JSON.
"""

import json
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
from browser import Browser, Failed, check, complaints

NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
# A desktop, a tablet, a phone.
WIDTHS = [1400, 768, 390]
CHOSEN = "document.querySelector('#panel h3').textContent"
ORIGINS = "[...document.querySelectorAll('#stages td.diverged, #stages td.poisoned')].map(td => td.dataset.key)"


def use(page, report, folder):
    page.size(1280, 900, "light")
    page.open(report.as_uri())
    seen = {"milliseconds": page.value("performance.getEntriesByType('navigation')[0].domComplete")}
    runs = page.value("document.querySelectorAll('script.run').length")
    if page.value("document.querySelector('#run').hidden"):
        seen["overview"] = overview(page, runs, folder)
    seen.update(page.value("""({
        badge: document.querySelector('.badge').textContent,
        headline: document.querySelector('h1').textContent,
        remedies: [...document.querySelectorAll('header .remedy')].map(p => p.lastChild.textContent),
        folded: [...document.querySelectorAll('header details:not([open]) dt')].map(dt => dt.textContent),
        cells: document.querySelectorAll('#stages td[data-key]').length,
        positions: document.querySelectorAll('#positions td[data-key]').length,
        origins: document.querySelectorAll('#stages td.diverged, #stages td.poisoned').length,
        graph: Object.fromEntries([...document.querySelectorAll('#graph .node[data-key]:not(.outside)')].map(n => [n.dataset.key, n.getAttribute('aria-label')])),
        elements: document.querySelectorAll('#elements .map canvas').length,
        attention: document.querySelectorAll('#attention .map canvas').length,
        logits: document.querySelectorAll('#logits tbody tr').length,
        terms: document.querySelectorAll('#at-glossary dt').length,
        command: document.querySelector('#command').textContent,
        nodes: document.querySelectorAll('img, iframe, object, embed, link, form').length,
        scripts: document.scripts.length,
        empty: [...document.querySelectorAll('main section')].filter(s => s.offsetParent && s.innerText.length < 40).map(s => s.innerText),
        nothing: document.body.innerText.match(/\\b(undefined|null|NaN of|\\[object)\\b/g) || [],
    })"""))
    check(seen["cells"] > 0, "no stage is drawn")
    check(seen["positions"] > 0, "no position is drawn")
    check(seen["terms"] >= 10, "the glossary is gone")
    check(seen["nodes"] == 0 and seen["scripts"] == runs + 2, "the page has something that the template has not")
    check(not seen["empty"], f"empty sections: {seen['empty']}")
    check(not seen["nothing"], f"a value is missing somewhere: {seen['nothing']}")

    begins_at_its_verdict(page, seen)
    drills_in(page, seen)
    answers_where_one_looks(page)
    graph(page)
    filters(page, seen)
    zooms(page, seen)
    picks_heads(page, seen)
    copies(page)
    leads_to_its_sections(page)
    for control in page.value(
            "[...document.querySelectorAll('button, select, a, canvas, svg, [role=grid]')]"
            ".filter(e => !e.closest('label') && !(e.ariaLabel || e.getAttribute('aria-label') || e.textContent.trim())).map(e => e.outerHTML.slice(0, 80))"):
        raise Failed("without a name for a screen reader: " + control)
    looks(page, seen, folder)
    for words in complaints(page.events):
        raise Failed(words)
    return seen


def overview(page, runs, folder):
    """The overview of several runs, and the way to the first and back."""
    seen = page.value("""({
        badge: document.querySelector('.badge').textContent,
        headline: document.querySelector('h1').textContent,
        absent: [...document.querySelectorAll('header .absent')].map(p => p.textContent),
        common: [...document.querySelectorAll('header .common')].map(p => p.textContent),
        rows: [...document.querySelectorAll('#runs tbody tr')].map(tr => tr.innerText),
        outcomes: [...document.querySelectorAll('#outcomes button')].map(b => b.textContent),
    })""")
    check(len(seen["rows"]) == runs, f"{len(seen['rows'])} of {runs} runs are listed")
    for i, words in enumerate(seen["outcomes"]):
        page.click(f"#outcomes button:nth-child({i + 1})")
        shown = page.value("document.querySelectorAll('#runs tbody tr').length")
        check(words.endswith(f" {shown}"), f"'{words}' shows {shown} runs")
    if seen["outcomes"]:
        page.click("#outcomes button:nth-child(1)")
    names = page.value("[...document.querySelectorAll('#runs tbody a')].map(a => a.textContent)")
    check(len(set(names)) == len(names), f"two runs have one name: {names}")
    for width in WIDTHS:
        page.size(width, 900, "light")
        page.shot(folder / f"overview-{width}.png")
        check(page.value("document.documentElement.scrollWidth") <= width, f"the overview is wider than {width} pixels")
    # On a phone the first origin is on the screen, and a finger meets the links.
    page.touch(True)
    far = page.value("Math.max(...[...document.querySelectorAll('#runs tbody td')].map(td => td.getBoundingClientRect().right))")
    check(far <= 390, f"a cell of the runs ends at {far} on a phone of 390 pixels")
    low = page.value("Math.min(...[...document.querySelectorAll('#runs tbody a, header .common a')].map(a => a.getBoundingClientRect().height))")
    check(low >= 32, f"a link of {low} pixels for a finger")
    page.touch(False)
    page.size(1280, 900, "light")
    headline = page.value("document.querySelector('h1').textContent")
    for _ in range(2):
        page.click("#runs tbody a")
        page.value("new Promise(requestAnimationFrame)")
        check(page.value("document.querySelector('#runs').offsetParent === null && !document.querySelector('#run').hidden"), "a run does not open")
        if page.value("!document.querySelector('#contents .back')"):
            raise Failed("no way back to the overview")
        if _ == 0:
            page.click("#contents .back")
            page.value("new Promise(requestAnimationFrame)")
            check(page.value("document.querySelector('h1').textContent") == headline, "the way back leads elsewhere")
    return seen


def begins_at_its_verdict(page, seen):
    """What, where, why and remedy come first, and stay first under the address of the first origin."""
    where = page.value("location.href")
    origins = page.value(ORIGINS)
    first = page.value(CHOSEN).split(" ")[0]
    for url in [where] + [where.split("#")[0] + (where[where.index("#"):] + "/" if "#run" in where else "#") + "stage/" + first][:len(origins)]:
        page.open(url)
        top = page.value("[scrollY, document.querySelector('h1').getBoundingClientRect().top, innerHeight]")
        check(top[0] == 0 and 0 <= top[1] < top[2] / 2, f"the page opens at {top[0]}, not at its verdict")
    if origins:
        check(first in origins, f"the page begins with {first}, which is no origin")
        stop = page.value("document.querySelector('#stages td[tabindex=\"0\"]').dataset.key")
        check(stop == first, f"the tab stop begins at {stop}, not at {first}")
    elif seen["badge"] == "MATCH":
        check(page.value("document.querySelectorAll('main [aria-selected=true], main [data-key][aria-pressed=true]').length") <= 1,
              "a match begins with a choice")
        check(page.value(CHOSEN) == "No stage is chosen", "a match begins with a stage")
        red = page.value("""(() => {
            const context = document.createElement('canvas').getContext('2d', {willReadFrequently: true}), known = new Map();
            const isRed = (colour) => {
                if (!known.has(colour)) {
                    context.clearRect(0, 0, 1, 1);
                    context.fillStyle = colour;
                    context.fillRect(0, 0, 1, 1);
                    const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
                    known.set(colour, a > 40 && r - Math.max(g, b) > 60);
                }
                return known.get(colour);
            };
            for (const e of document.querySelectorAll('body, body *')) {
                const style = getComputedStyle(e);
                const shadow = (style.boxShadow.match(/rgba?\\([^)]*\\)/) || ['#000'])[0];
                if (isRed(shadow)) return e.outerHTML.slice(0, 80) + ' shadow ' + shadow;
                for (const name of ['color', 'backgroundColor', 'borderLeftColor', 'fill', 'stroke'])
                    if (isRed(style[name])) return e.outerHTML.slice(0, 80) + ' ' + name + ' ' + style[name];
            }
        })()""")
        check(not red, f"a match in red: {red}")
    if seen["remedies"]:
        check(page.value("document.querySelector('h1').nextElementSibling.className") == "remedy", "the remedy is not under the headline")
    check("model" in seen["folded"], f"the model is not folded away, only {seen['folded']}")
    strays = page.value("[...document.querySelectorAll('[id]')].map(e => e.id).filter(id => id.includes('/') || document.querySelector(`#stages td[data-key=\"${CSS.escape(id)}\"]`) && location.hash === '#' + id)")
    check(not strays, f"addresses of stages are ids of elements: {strays}")


def drills_in(page, seen):
    keys = page.value("[...document.querySelectorAll('#stages td[data-key]')].map(td => td.dataset.key)")
    for key in [keys[-1], keys[len(keys) // 2]]:
        page.click(f'#stages td[data-key="{key}"]')
        shown = page.value(CHOSEN)
        check(shown.startswith(key + " "), f"a click on {key} shows {shown}")
        check(page.value("location.hash").endswith("/stage/" + key) or page.value("location.hash") == "#stage/" + key,
              "the address does not name the choice")
        check(page.value("document.getElementById(location.hash.slice(1)) === null"), "the address of a stage is the id of an element")
    calm = page.value("[...document.querySelectorAll('#stages td.poisoned')].filter(td => !td.matches('.over') || /\\d %/.test(td.ariaLabel)).map(td => td.ariaLabel)")
    check(not calm, f"NaN is drawn as if it were within bounds: {calm}")
    seen["detail"] = page.value("document.querySelector('#panel').innerText.length")
    check(seen["detail"] > 100, "the details of a stage are empty")

    # The keyboard does as well: to the next cell and into it.
    before = focused = page.value("document.activeElement.dataset.key")
    for key, code in [("ArrowDown", 40), ("ArrowUp", 38), ("ArrowRight", 39), ("ArrowLeft", 37)]:
        if focused == before:
            page.press(key, code)
            focused = page.value("document.activeElement.dataset.key")
    page.press("Enter", 13)
    shown = page.value(CHOSEN)
    check(focused != before or len(keys) == 1, "no arrow key moves")
    check(shown.startswith(focused + " "), f"Enter on {focused} shows {shown}")
    check(page.value("document.querySelectorAll('#stages td[tabindex=\"0\"]').length") == 1, "the grid is no single tab stop")
    # A choice made elsewhere takes the tab stop along.
    links = page.value("document.querySelectorAll('#origins button').length")
    if links:
        page.click("#origins button")
        key = page.value("document.querySelector('#origins button').textContent")
        stop = page.value("document.querySelector('#stages td[tabindex=\"0\"]').dataset.key")
        check(stop == key, f"the tab stop stays at {stop} where {key} is chosen")


def answers_where_one_looks(page):
    """A click in a map of stages changes something that is on the screen."""
    visible = """(() => {
        const h = document.querySelector('#panel h3'), r = h.getBoundingClientRect();
        const on = document.elementFromPoint(r.x + 4, r.y + r.height / 2);
        return Boolean(on && on.closest('#detail')) && r.top >= 0 && r.bottom <= innerHeight;
    })()"""
    for width, height in [(1280, 900), (390, 844)]:
        page.size(width, height, "light")
        count = page.value("document.querySelectorAll('#positions td[data-key]').length")
        for i in sorted({0, count // 2, count - 1}):
            page.value(f"document.querySelectorAll('#positions td[data-key]')[{i}].id = 'aim'")
            key, at = page.value("(({dataset: d}) => [d.key, d.at])(document.querySelector('#aim'))")
            page.click("#aim")
            page.value("document.querySelector('#aim').removeAttribute('id')")
            check(page.value(CHOSEN).startswith(key + " "), "a position leads nowhere")
            check(page.value("document.querySelector('#panel .gist p').textContent").startswith(f"p{at}"), f"the panel does not tell position {at}")
            check(page.value(visible), f"at {width} pixels a click in tokens by layer changes what is off the screen")
    page.click("#more")
    check(page.value("document.querySelector('#panel table').offsetParent !== null"), "the panel does not open on a phone")
    page.click("#more")
    page.size(1280, 900, "light")
    page.click("#side button:nth-child(2)")
    check(page.value("document.querySelector('#side button:nth-child(2)').ariaPressed") == "true", "the reference cannot be chosen")
    page.click("#side button:nth-child(1)")


def graph(page):
    """The graph of each layer has its stages, joined, and marks its origins."""
    for layer in page.value("[...document.querySelectorAll('#graph-layer option')].map(o => o.value)")[:3]:
        page.value(f"(s => {{ s.value = '{layer}'; s.dispatchEvent(new Event('change')); }})(document.querySelector('#graph-layer'))")
        prefix = "" if layer == "-1" else f"L{int(layer):02}."
        wanted = [k for k in page.value("[...document.querySelectorAll('#stages td[data-key]')].map(td => td.dataset.key)")
                  if (k.startswith(prefix) if prefix else "." not in k)]
        drawn = page.value("[...document.querySelectorAll('#graph .node:not(.outside)')].map(n => n.dataset.key)")
        check(sorted(drawn) == sorted(wanted), f"the graph of layer {layer} shows {drawn}")
        check(len(wanted) < 2 or page.value("document.querySelectorAll('#graph .edge').length") >= len(wanted) - 2, "the graph has no edges")
        marked = page.value("[...document.querySelectorAll('#graph .node.origin')].map(n => n.dataset.key)")
        # What is diverged is an origin; what is poisoned may have its NaN from elsewhere.
        diverged = page.value("[...document.querySelectorAll('#stages td.diverged')].map(td => td.dataset.key)")
        check(set(diverged) & set(wanted) <= set(marked) <= set(page.value(ORIGINS)) & set(wanted), f"the graph of layer {layer} marks {marked}")
        apart = page.value("""(() => {
            const boxes = [...document.querySelectorAll('#graph .node rect')].map(r => r.getBBox());
            return boxes.every((a, i) => boxes.every((b, j) => i >= j || a.x + a.width <= b.x || b.x + b.width <= a.x || a.y + a.height <= b.y || b.y + b.height <= a.y));
        })()""")
        check(apart, f"stages of layer {layer} lie on each other")
        page.click(f'#graph .node[data-key="{wanted[-1]}"]')
        check(page.value(CHOSEN).startswith(wanted[-1] + " "), "a stage of the graph leads nowhere")


def filters(page, seen):
    """Each status can be shown alone, in the map and in the table."""
    words = page.value("[...document.querySelectorAll('#filter button')].map(b => b.textContent)")
    statuses = page.value("new Set([...document.querySelectorAll('#stages td[data-key]')].map(td => td.ariaLabel.split(': ')[1].split(',')[0])).size")
    check(len(words) == (statuses + 1 if statuses > 1 else 0), f"{statuses} statuses, and the filters {words}")
    for i, text in enumerate(words):
        page.click(f"#filter button:nth-child({i + 1})")
        status, count = text.rsplit(" ", 1)
        cells = page.value("[...document.querySelectorAll('#stages td[data-key]')].map(td => td.ariaLabel.split(': ')[1].split(',')[0])")
        check(len(cells) == int(count) and (status == "all" or set(cells) == {status}), f"'{text}' shows {len(cells)} stages: {set(cells)}")
        rows = page.value("[document.querySelectorAll('#stages tbody tr').length, document.querySelectorAll('#table tbody tr').length]")
        check(rows[0] == rows[1], f"'{text}' shows {rows[1]} rows of the table for {rows[0]}")
    if words:
        page.click("#filter button:nth-child(1)")
    check(page.value("document.querySelectorAll('#stages td[data-key]').length") == seen["cells"], "a filter does not go away")


def zooms(page, seen):
    """The heatmap of elements goes down to single ones and back."""
    if not seen["elements"]:
        return
    names = page.value("[...document.querySelectorAll('#elements figcaption')].map(f => f.textContent.split(/[, ]/)[0])")
    check(names in (["subject", "f64", "reference", "difference"], ["subject", "f64", "difference"]), f"the heatmaps are {names}")
    painted = page.value("""[...document.querySelectorAll('#elements canvas, #attention canvas')].every(c => {
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        return d.some((v, i) => i % 4 === 3 && v);
    })""")
    check(painted, "a heatmap is empty")
    scales = page.value("[...document.querySelectorAll('#elements figure, #attention figure')].map(f => f.querySelector('.scale').textContent)")
    check(all(any(c.isdigit() and c != "0" for c in scale) for scale in scales), f"the colours say {scales}")
    lines = page.value("(c => [c.width, c.height])(document.querySelector('#elements canvas'))")
    check(lines[1] > 1 or lines[0] <= 96, f"a row of {lines[0]} elements is a strip")
    size = "(c => [c.width, c.height])(document.querySelector('#elements canvas'))"
    index = page.value("document.querySelector('#elements h3').textContent").rsplit("[", 1)[1]
    readout = page.value("document.querySelector('#elements .readout').textContent")
    check(f"[{index}" in readout and "subject" in readout and "f64" in readout, f"the worst element is [{index} and the map tells {readout}")
    before = page.value(size)
    for _ in range(12):
        page.click("#elements [aria-label='Zoom in']")
    after = page.value(size)
    check(after[0] <= min(4, before[0]) and after[1] <= min(4, before[1]), f"zooming goes from {before} to {after} cells")
    check("a cell shows" not in page.value("document.querySelector('#elements .tools').textContent"), "zooming does not reach single elements")
    check(f"[{index}" in page.value("document.querySelector('#elements .readout').textContent"), "zooming leaves the worst element")
    page.value("document.querySelector('#elements canvas').focus()")
    page.press("ArrowLeft" if after[0] > 1 and int(index.rstrip("]")) else "ArrowRight", 37)
    moved = page.value("document.querySelector('#elements .readout').textContent")
    check(moved != readout or before[0] == 1, "the arrow keys do not move in a heatmap")
    page.click("#elements [aria-label='Back to the worst']")
    check(page.value(size) == before, "the whole does not come back")


def picks_heads(page, seen):
    """Every head and every layer of the attention maps can be picked."""
    if not seen["attention"]:
        return
    for picker in ["layer", "head"]:
        values = page.value(f"[...document.querySelectorAll('#attention-{picker} option')].map(o => o.value)")
        titles = set()
        for value in values:
            page.value(f"(s => {{ s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }})(document.querySelector('#attention-{picker}'))")
            titles.add(page.value("document.querySelector('#attention h3').textContent"))
        check(len(titles) == len(values), f"{len(values)} to pick as {picker}, and {titles}")
        seen[picker + "s"] = len(values)


def copies(page):
    """A command is on the clipboard after one click."""
    page.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    for pre in ["#repeat .command", "#panel .command"]:
        check(page.value(f"document.querySelectorAll('pre').length === document.querySelectorAll('.command pre + .copy').length"), "a command without a button to copy it")
        page.click(pre + " .copy")
        said = page.value(f"new Promise(r => setTimeout(() => r(document.querySelector('{pre} .copy').textContent), 50))")
        check(said == "Copied", f"the button to copy says {said}")
        text = page.value("navigator.clipboard.readText()")
        check(text == page.value(f"document.querySelector('{pre} pre').textContent"), f"copied is {text}")


def leads_to_its_sections(page):
    """The table of contents names every section, and leads there."""
    links = page.value("[...document.querySelectorAll('#contents a:not(.back)')].map(a => a.textContent)")
    heads = page.value("[...document.querySelectorAll('main section')].filter(s => s.offsetParent).map(s => s.querySelector('h2').textContent)")
    check(links == heads, f"the contents are {links}, the sections {heads}")
    for i, head in enumerate(heads):
        page.value(f"document.querySelectorAll('#contents a:not(.back)')[{i}].click()")
        page.value("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        top, low, end = page.value(f"""(() => {{
            const s = [...document.querySelectorAll('main section')].filter(s => s.offsetParent)[{i}].getBoundingClientRect();
            return [s.top, document.querySelector('#contents').getBoundingClientRect().bottom, scrollY + innerHeight >= document.documentElement.scrollHeight - 2];
        }})()""")
        check(low - 8 <= top <= low + 80 or end and top < 900, f"the contents lead past {head}, to {top}")
    page.value("scrollTo(0, 0)")


def looks(page, seen, folder):
    """In the light, in the dark, on a phone and under a finger."""
    for width in WIDTHS:
        page.size(width, 900, "light")
        page.shot(folder / f"light-{width}.png")
        check(page.value("document.documentElement.scrollWidth") <= width, f"the page is wider than {width} pixels")
    far = page.value("Math.max(0, ...[...document.querySelectorAll('#origins td')].map(td => td.getBoundingClientRect().right))")
    check(far <= 390, f"a cell of the origins ends at {far} on a phone of 390 pixels")
    page.size(1280, 900, "dark")
    page.shot(folder / "dark.png")
    dark = page.value("getComputedStyle(document.body).backgroundColor")
    check(max(int(n) for n in dark.strip("rgb()").split(",")) < 90, f"the dark page is {dark}")
    page.size(390, 844, "light")
    page.shot(folder / "phone.png")
    width = page.value("document.documentElement.scrollWidth")
    letters = page.value(
        "Math.min(...[...document.querySelectorAll('svg')].filter(s => s.getBoundingClientRect().width).map(s => 11 * s.getBoundingClientRect().width / s.viewBox.baseVal.width))"
    )
    narrow = page.value("Math.min(...[...document.querySelectorAll('td[data-key]')].map(td => td.getBoundingClientRect().width))")
    check(narrow >= 36, f"cells of {narrow} pixels on a phone")
    check(letters >= 9, f"text of {letters} pixels on a phone")
    check(width <= 390, f"a phone of 390 pixels has to scroll sideways: {width}")
    page.touch(True)
    small = page.value("""[...document.querySelectorAll('main td[data-key], main button')].filter(e => e.offsetParent && !e.matches('.link'))
        .map(e => [e.outerHTML.slice(0, 60), e.getBoundingClientRect()]).filter(([, r]) => r.height < 32 || r.width < 26).map(([e]) => e)""")
    narrow = page.value("Math.min(...[...document.querySelectorAll('td[data-key]')].map(td => td.getBoundingClientRect().width))")
    check(not small and narrow >= 32, f"too small for a finger: {small[:3]}, cells of {narrow} pixels")
    check(page.value("document.documentElement.scrollWidth") <= 390, "under a finger the page is wider than a phone")
    page.touch(False)


def main():
    folder, reports = pathlib.Path(sys.argv[1]), [pathlib.Path(report).resolve() for report in sys.argv[2:]]
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if not program:
        raise Failed("no Chromium on the PATH: install it with scripts/setup --tests")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        page = Browser(program, profile)
        try:
            seen = []
            for report in reports:
                shots = folder / report.stem
                shots.mkdir(parents=True, exist_ok=True)
                page.tab()
                try:
                    seen.append(use(page, report, shots))
                except Failed as e:
                    raise Failed(f"{report.name}: {e}") from e
            print(json.dumps(seen))
        finally:
            page.close()


try:
    main()
except Failed as e:
    sys.exit(f"drive.py: {e}")
