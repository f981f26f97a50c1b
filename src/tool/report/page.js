// SPDX-License-Identifier: Apache-2.0
// The page of `rmmshim report`.  It shows the document in the element #document:
//
//   schema, version
//   frames   texts
//   sites    for each call site numbers of frames, innermost first; a site without frames was not recorded
//   runs     one for each recording:
//     file, program, process, rank, begun_ms (since 1970), end_ns, events, lost_events, sample_bytes, damage
//     series   one for each kind of memory on each device:
//       device, kind, peak_used, peak_ns, peak_held, limit, end_used, end_held, end_blocks,
//       allocations, frees, allocated_bytes
//       bucket_ns, timeline: [bucket, least used, most used, last used, most held, last held, limit]
//       site_count, sites: [site, bytes and blocks at the peak, in all, and at the end,
//         sum of the lifetimes in ns of those that were freed]
//       peak_blocks, merged_below, spans: [address, length, used, site]
//       sizes: [power of two of the size, of the lifetime in ns (63: never freed), blocks, bytes]
//     phase_count, phases: name, count, growth,
//       occurrences: [begin, end or null, used at begin and end, peak],
//       survivors: [site, bytes, blocks, occurrences]
//     marks    [ns, name, used]
//     refusals, waits: count, duration_ns, bytes, first: [ns, duration, bytes, series, site]
//
// Times are in ns since a recording began, amounts in bytes.
"use strict";

const report = JSON.parse(document.getElementById("document").textContent);
const CHARTS_SHOWN = 16, ROWS_SHOWN = 200, NEVER_FREED = 63;
const NO_SITE = "(no call site was recorded)";

// All series, each with its run and a name of its own.
const everySeries = report.runs.flatMap((run) => run.series.map((series) => (
  { run, series, name: nameOf(run) + ", " + kindOf(series) })));

// What is drawn anew when the window or the theme changes.
let charts = [], addressMap, compared;

// Names a run. With several recordings the name has the file too, since ranks often differ in nothing else.
function nameOf(run) {
  const file = run.file.split("/").at(-1);
  return (run.program || file) + (run.process ? " [" + run.process + "]" : "") + (run.rank && ", rank " + run.rank) +
    (report.runs.length > 1 ? " in " + file : "");
}

function kindOf(series) {
  return "device " + series.device + (series.kind === "device" ? "" : ", " + series.kind + " memory");
}

// ---- call sites ----

function framesOf(site) {
  return report.sites[site].map((frame) => report.frames[frame]);
}

// A line of Python: "PATH:LINE in FUNCTION".
const LINE = /:\d+ in /;

// Shortens a frame to "FUNCTION (OBJECT)", without offsets, which differ from build to build. A line of Python keeps
// only the file's name of its path.
function shortFrame(frame) {
  return (LINE.test(frame) ? frame.replace(/^.*\/(?=[^/]*:\d+ in )/, "") : frame).replace(/\+0x[0-9a-f]+/g, "");
}

// Names a site by its innermost frame. In a program in Python that is the framework's allocator at every site, so the
// innermost line of Python comes before it.
function siteText(site) {
  const frames = framesOf(site), line = frames.find((frame) => LINE.test(frame));
  return (line && line !== frames[0] ? shortFrame(line) + ", " : "") + (frames[0] ?? NO_SITE);
}

// Returns the same key for the same code in two recordings.
function siteKey(site) {
  return framesOf(site).map(shortFrame).join("\n");
}

// ---- parts of the page ----

// Replaces all that a section shows except its heading.
function fillSection(id, ...children) {
  const place = document.getElementById(id);
  place.replaceChildren(place.querySelector("h2"), ...children);
}

function button(text, onclick, attributes = {}) {
  return make("button", { type: "button", onclick, ...attributes }, text);
}

function faint(text) {
  return make("p", { class: "faint" }, text);
}

function row(...children) {
  return make("div", { class: "row" }, ...children);
}

// Puts a child that may be larger than its place in a box that the keyboard scrolls too.
function scroll(label, child) {
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, child);
}

function key(name, text) {
  const element = make("span", { class: "key" }, text);
  element.style.setProperty("--of", `var(--${name})`);
  return element;
}

// ---- tables ----

const bytesColumn = (title, value) => ({ title, value, text: (one) => bytesText(value(one)), isNumber: true });
const countColumn = (title, value) => ({ title, value, text: (one) => countText(value(one)), isNumber: true });
const timeColumn = (title, value) => ({ title, value, text: (one) => timeText(value(one)), isNumber: true });
const textColumn = (title, value) => ({ title, value });
const siteColumn = (value) => ({ title: "Call site", value: (one) => siteText(value(one)), isCode: true });

// A table that is sorted by a click on the title of a column.
class Table {
  // `columns` are {title, value(row), text(row) or node(row), isNumber, isCode}; `sorted` is the one by which rows are
  // sorted first (-1: by none).  With `choose`, the last column is a button that calls it.
  constructor(label, columns, rows, { sorted = 0, choose } = {}) {
    Object.assign(this, { columns, rows, choose, by: sorted, isDown: true, shown: ROWS_SHOWN });
    this.head = make("tr", {}, ...columns.map((column, i) => make("th",
      { scope: "col", class: column.isNumber && "number" }, button(column.title, () => this.sort(i)))));
    this.body = make("tbody");
    this.more = button("Show all " + countText(rows.length) + " rows", () => { this.shown = Infinity; this.fill(); });
    this.element = make("div", {},
      scroll(label, make("table", {}, make("thead", {}, this.head), this.body)), this.more);
    this.fill();
  }

  // Sorts by a column: numbers from the largest, texts from the first. A second click reverses the order.
  sort(column) {
    this.isDown = this.by === column ? !this.isDown : Boolean(this.columns[column].isNumber);
    this.by = column;
    this.fill();
  }

  ordered() {
    const value = this.columns[this.by]?.value, sign = this.isDown ? -1 : 1;
    if (!value) return this.rows;
    return [...this.rows].sort((a, b) => {
      const x = value(a), y = value(b);
      return x < y ? -sign : x > y ? sign : 0;
    });
  }

  cell(column, one) {
    const content = column.node ? column.node(one) : String((column.text ?? column.value)(one));
    return make("td", { class: column.isNumber ? "number" : column.isCode && "code" }, content);
  }

  line(one) {
    const line = make("tr", {}, ...this.columns.map((column) => this.cell(column, one)));
    const last = line.lastElementChild;
    if (this.choose) last.replaceChildren(button(last.textContent, () => {
      this.body.querySelectorAll(".chosen").forEach((other) => other.classList.remove("chosen"));
      line.classList.add("chosen");
      this.choose(one);
    }));
    return line;
  }

  fill() {
    const order = this.isDown ? "descending" : "ascending";
    this.body.replaceChildren(...this.ordered().slice(0, this.shown).map((one) => this.line(one)));
    this.more.hidden = this.rows.length <= this.shown;
    [...this.head.children].forEach((cell, i) => cell.setAttribute("aria-sort", i === this.by ? order : "none"));
  }
}

function table(...about) {
  return new Table(...about).element;
}

// ---- processes, side by side ----

function warningsOf(run) {
  const texts = [];
  if (run.damage) texts.push(run.damage + "; the undamaged parts are shown");
  if (run.lost_events)
    texts.push("the recording lacks " + countText(run.lost_events) + " events, so figures may be too low; a larger --record-size may keep all");
  return texts.map((text) => make("p", { class: "warn" }, nameOf(run) + ": " + text));
}

function showOverview() {
  const limit = ({ series }) => series.limit ? bytesText(series.limit) : "none";
  fillSection("overview", ...report.runs.flatMap(warningsOf), everySeries.length ? table("Processes", [
    textColumn("Process", (one) => nameOf(one.run)),
    textColumn("Memory", (one) => kindOf(one.series)),
    bytesColumn("Peak used", (one) => one.series.peak_used),
    timeColumn("Peak after", (one) => one.series.peak_ns),
    bytesColumn("Peak held", (one) => one.series.peak_held),
    { title: "Limit", value: (one) => one.series.limit, text: limit, isNumber: true },
    countColumn("Allocations", (one) => one.series.allocations),
    bytesColumn("Allocated in all", (one) => one.series.allocated_bytes),
    bytesColumn("Live at the end", (one) => one.series.end_used),
    countColumn("Refused", (one) => one.run.refusals.count),
    timeColumn("Waited for the GPU", (one) => one.run.waits.duration_ns),
    timeColumn("Duration", (one) => one.run.end_ns),
  ], everySeries, { sorted: 2 }) : faint("No memory was allocated."));
}

// ---- memory over time ----

function zoomButtons(view) {
  const named = (text, title, action) => button(text, action, { title, "aria-label": title });
  return [
    named("+", "Zoom in", () => view.zoom(0.5)),
    named("\u2212", "Zoom out", () => view.zoom(2)),
    named("\u2190", "Earlier", () => view.pan(-0.4)),
    named("\u2192", "Later", () => view.pan(0.4)),
    named("All", "Show all of the time", () => view.all()),
  ];
}

function lineOf({ run, series }, offset = 0) {
  return { series, offset, end: run.end_ns };
}

// Shows memory over time. Each recording begins at 0, or with isByClock as much later as it began after the first.
function showTime(isByClock = false) {
  const began = Math.min(...report.runs.map((run) => run.begun_ms));
  const offset = (run) => isByClock ? (run.begun_ms - began) * 1e6 : 0;
  const view = new View(Math.max(1, ...report.runs.map((run) => offset(run) + run.end_ns)));
  const place = make("div"), shown = make("span", { class: "faint" });
  const clock = make("label", { hidden: report.runs.length < 2 },
    make("input", { type: "checkbox", checked: isByClock, onchange: () => showTime(!isByClock) }),
    " by the clock; otherwise each recording begins at 0");
  const add = (one) => {
    const chart = new Chart(view, [lineOf(one, offset(one.run))], one.run, one.name);
    charts.push(chart);
    place.append(make("h3", {}, one.name), chart.element);
    chart.draw();
  };
  const more = button("Show " + (everySeries.length - CHARTS_SHOWN) + " more", () => {
    more.remove();
    everySeries.slice(CHARTS_SHOWN).forEach(add);
  });
  charts = [];
  view.listeners.push(() => { shown.textContent = timeText(view.from) + " to " + timeText(view.to); });
  fillSection("time", row(...zoomButtons(view), shown, clock),
    row(key("used", "used, lowest"), key("band", "used, highest"), key("held", "held"), key("limit", "limit"),
      key("phase", "phase"), key("refused", "refused"), key("waited", "waited")),
    faint("Drag over a plot to zoom in, double-click to see all. Keys: + and \u2212 zoom, arrows move, 0 shows all."),
    place, ...(everySeries.length > CHARTS_SHOWN ? [more] : []));
  everySeries.slice(0, CHARTS_SHOWN).forEach(add);
  view.all();
}

// ---- the peak ----

function showSite(place, site) {
  const frames = framesOf(site);
  place.replaceChildren(make("h3", {}, siteText(site)), frames.length ?
    make("ol", { class: "frames" }, ...frames.map((frame) => make("li", {}, frame))) :
    faint("No call site was recorded for these blocks: see RMM_RECORD_SITES in rmmshim-variables(7)."));
}

function siteTable(series, choose) {
  const freed = (one) => one[4] - one[6];
  const share = (one) => (100 * one[1] / Math.max(series.peak_used, 1)).toFixed(1) + " %";
  const life = (one) => freed(one) ? timeText(one[7] / freed(one)) : "never freed";
  return table("Call sites", [
    bytesColumn("At the peak", (one) => one[1]),
    { title: "Share", value: (one) => one[1], text: share, isNumber: true },
    countColumn("Blocks", (one) => one[2]),
    bytesColumn("Allocated in all", (one) => one[3]),
    countColumn("Blocks in all", (one) => one[4]),
    bytesColumn("Live at the end", (one) => one[5]),
    countColumn("Blocks at the end", (one) => one[6]),
    { title: "Mean lifetime", value: (one) => one[7] / Math.max(freed(one), 1), text: life, isNumber: true },
    siteColumn((one) => one[0]),
  ], series.sites, { choose });
}

function showPeak({ run, series }) {
  const details = make("div", { "aria-live": "polite", id: "site" });
  const live = series.sites.filter((one) => one[1] > 0), left = series.site_count - series.sites.length;
  const stacks = live.map((one) => ({ frames: framesOf(one[0]), bytes: one[1] }));
  const flame = new Flame(stacks.map(({ frames, bytes }) => ({ frames: frames.length ? frames : [NO_SITE], bytes })),
    shortFrame);
  fillSection("peak",
    make("p", {}, bytesText(series.peak_used) + " were in use after " + timeText(series.peak_ns) +
      ". Wider is more memory; outermost calls are on top."),
    run.sample_bytes ? faint("One block in each " + bytesText(run.sample_bytes) + " allocated has a call site, " +
      "so figures by call site are estimates.") : "",
    flame.element, siteTable(series, (one) => showSite(details, one[0])),
    left ? faint(countText(left) + " call sites with less memory are not in this page.") : "", details);
  flame.draw();
}

// ---- addresses ----

function showAddresses({ series }) {
  addressMap = undefined;
  if (!series.spans.length) {
    fillSection("addresses", faint("No blocks were in use."));
    return;
  }
  const describe = ([address, length, used, site]) => "0x" + address.toString(16) + ": " + bytesText(used) +
    (used < length ? " in a range of " + bytesText(length) : "") + ", " + siteText(site);
  const map = addressMap = new AddressMap(series.spans, describe, siteKey), gaps = map.gaps();
  fillSection("addresses",
    make("p", {}, countText(series.peak_blocks) + " blocks with " + bytesText(series.peak_used) + ". Between them: " +
      countText(gaps.count) + " gaps with " + bytesText(gaps.bytes) + ", the largest of them " +
      bytesText(gaps.largest) + (series.peak_held ? ". Held at most: " + bytesText(series.peak_held) : "") + "."),
    series.merged_below ? faint("Blocks less than " + bytesText(series.merged_below) + " apart are drawn as one.") : "",
    map.element);
  map.draw();
}

// ---- sizes and lifetimes ----

// Blocks, or their bytes, by size (down) and lifetime (across).
function sizeTable(cells, column, text) {
  const distinct = (at) => [...new Set(cells.map((one) => one[at]))].sort((a, b) => a - b);
  const sizes = distinct(0).reverse(), lives = distinct(1), most = Math.max(...cells.map((one) => one[column]));
  const values = new Map(cells.map((one) => [one[0] + " " + one[1], one[column]]));
  const cell = (size, life) => {
    const value = values.get(size + " " + life), element = make("td", {}, value ? text(value) : "");
    const part = value ? Math.round(15 + 85 * Math.log1p(value) / Math.log1p(most)) : 0;
    element.style.background = `color-mix(in srgb, var(--band) ${part}%, transparent)`;
    return element;
  };
  const all = (size) => cells.filter((one) => one[0] === size).reduce((sum, one) => sum + one[column], 0);
  const title = (life) => life === NEVER_FREED ? "never freed" : timeText(2 ** life, 3);
  return make("table", { class: "heat" },
    make("thead", {}, make("tr", {}, make("th", {}, "Size"),
      ...lives.map((life) => make("th", { class: "number" }, title(life))), make("th", { class: "number" }, "all"))),
    make("tbody", {}, ...sizes.map((size) => make("tr", {}, make("th", { scope: "row" }, bytesText(2 ** size)),
      ...lives.map((life) => cell(size, life)), make("td", {}, text(all(size)))))));
}

function showSizes(one, isBytes = false) {
  const cells = one.series.sizes;
  if (!cells.length) {
    fillSection("sizes", faint("No memory was allocated."));
    return;
  }
  fillSection("sizes",
    row(button(isBytes ? "Show numbers of blocks" : "Show bytes", () => showSizes(one, !isBytes)),
      make("span", { class: "faint" },
        "Rows: block size; columns: time until the free. Each covers the values from the one shown up to twice that.")),
    scroll("Sizes and lifetimes", sizeTable(cells, isBytes ? 3 : 2, isBytes ? bytesText : countText)));
}

// ---- phases ----

function endedOf(phase) {
  return phase.occurrences.filter((one) => one[1] !== null);
}

// Draws the bytes in use at the end of each occurrence as a small line.
function spark(phase) {
  const element = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
  const values = endedOf(phase).map((one) => one[3]), most = Math.max(1, ...values);
  const step = 160 / Math.max(values.length - 1, 1);
  const svg = element("svg"), line = element("polyline");
  const points = values.map((value, i) => (i * step).toFixed(1) + "," + (23 - 22 * value / most).toFixed(1));
  const attributes = { width: 160, height: 24, role: "img", "aria-label": "used at the end of each time" };
  for (const [name, value] of Object.entries(attributes)) svg.setAttribute(name, value);
  line.setAttribute("points", points.join(" "));
  line.setAttribute("fill", "none");
  line.style.stroke = "var(--used)";
  svg.append(line);
  return svg;
}

function survivorsOf(phase) {
  const none = "Nothing: what the phase allocated, but for its first and last time, was freed by the end of the last time.";
  return [make("h3", {}, "Left behind by \u201c" + phase.name + "\u201d"),
    phase.survivors.length ? table("Blocks left behind", [
      bytesColumn("Bytes", (one) => one[1]),
      countColumn("Blocks", (one) => one[2]),
      countColumn("Times", (one) => one[3]),
      siteColumn((one) => one[0]),
    ], phase.survivors, { sorted: -1 }) : faint(none)];
}

function phaseTable(run, choose) {
  return table("Phases", [
    countColumn("Times", (one) => one.count),
    bytesColumn("Growth each time", (one) => one.growth),
    bytesColumn("Peak", (one) => Math.max(...one.occurrences.map((time) => time[4]))),
    bytesColumn("Used after the last time", (one) => endedOf(one).at(-1)?.[3] ?? 0),
    { title: "Used after each time", value: (one) => one.count, node: spark },
    textColumn("Phase", (one) => one.name),
  ], run.phases, { sorted: 1, choose });
}

function showPhases({ run }) {
  const details = make("div"), left = run.phase_count - run.phases.length, parts = [];
  const choose = (phase) => details.replaceChildren(...survivorsOf(phase));
  if (run.phases.length) {
    parts.push(make("p", {}, "A phase that comes again and again should leave as much memory as it found. Growth is " +
      "counted from the end of the second time to that of the last; choose a name to see who allocated what is left."),
    phaseTable(run, choose), left ? faint(countText(left) + " more phases are not in this page.") : "", details);
    choose(run.phases.reduce((most, one) => one.growth > most.growth ? one : most));
  } else {
    parts.push(faint("The program named no phases (rmmshim_push_phase, or NVTX ranges)."));
  }
  if (run.marks.length) parts.push(make("h3", {}, "Marks"), table("Marks", [
    timeColumn("After", (one) => one[0]), bytesColumn("Used", (one) => one[2]), textColumn("Mark", (one) => one[1]),
  ], run.marks, { sorted: -1 }));
  fillSection("phases", ...parts);
}

// ---- refusals and waits ----

function incidentTable(run, { count, first }, what) {
  return [make("h3", {}, what + ": " + countText(count)),
    first.length ? table(what, [
      timeColumn("After", (one) => one[0]),
      timeColumn("Took", (one) => one[1]),
      bytesColumn("Size", (one) => one[2]),
      textColumn("Memory", (one) => kindOf(run.series[one[3]])),
      siteColumn((one) => one[4]),
    ], first, { sorted: -1 }) : "",
    count > first.length ? faint("The first " + countText(first.length) + " are shown.") : ""];
}

function showIncidents({ run }) {
  fillSection("incidents", ...incidentTable(run, run.refusals, "Requests refused as out of memory"),
    ...incidentTable(run, run.waits, "Requests that waited for the GPU"));
}

// ---- two recordings compared ----

function sitesByKey({ series }) {
  const sums = new Map();
  for (const [site, bytes, blocks] of series.sites) {
    const sum = sums.get(siteKey(site)) ?? { site, bytes: 0, blocks: 0 };
    sum.bytes += bytes;
    sum.blocks += blocks;
    sums.set(siteKey(site), sum);
  }
  return sums;
}

function difference(one, other) {
  const before = sitesByKey(one), after = sitesByKey(other), none = { bytes: 0, blocks: 0 };
  return [...new Set([...before.keys(), ...after.keys()])].map((at) => {
    const a = before.get(at) ?? none, b = after.get(at) ?? none;
    return { a, b, site: a.site ?? b.site, by: b.bytes - a.bytes };
  }).filter(({ a, b }) => a.bytes || b.bytes);
}

function signed(bytes) {
  return (bytes > 0 ? "+" : "") + bytesText(bytes);
}

function pick(label, chosen, action) {
  return make("label", {}, label + " ", make("select", { onchange: (event) => action(Number(event.target.value)) },
    ...everySeries.map((one, i) => make("option", { value: i, selected: i === chosen }, one.name))));
}

// Returns the number of the series for the same memory in another recording, else of any other series.
function counterpart(a) {
  const { run, series } = everySeries[a];
  const found = everySeries.findIndex((one) => one.run !== run && kindOf(one.series) === kindOf(series));
  return found < 0 ? (a + 1) % everySeries.length : found;
}

function showComparison(a, b) {
  const one = everySeries[a], other = everySeries[b], view = new View(Math.max(one.run.end_ns, other.run.end_ns));
  const before = one.series.peak_used, after = other.series.peak_used;
  compared = new Chart(view, [{ ...lineOf(one), name: "before:" }, { ...lineOf(other), name: "after:", color: "held" }],
    null, "Before and after");
  fillSection("compare",
    row(pick("Before", a, (value) => showComparison(value, b)), pick("After", b, (value) => showComparison(a, value))),
    make("p", {}, "Peak: " + bytesText(before) + " before, " + bytesText(after) + " after: " + signed(after - before)),
    row(...zoomButtons(view), key("used", "before"), key("held", "after")), compared.element,
    table("Change by call site", [
      { ...countColumn("Change at the peak", (site) => Math.abs(site.by)), text: (site) => signed(site.by) },
      bytesColumn("Before", (site) => site.a.bytes),
      bytesColumn("After", (site) => site.b.bytes),
      countColumn("Blocks before", (site) => site.a.blocks),
      countColumn("Blocks after", (site) => site.b.blocks),
      siteColumn((site) => site.site),
    ], difference(one, other)));
  compared.draw();
}

// ---- the page ----

function showSeries(one) {
  showPeak(one);
  showAddresses(one);
  showSizes(one);
  showPhases(one);
  showIncidents(one);
}

function redraw() {
  charts.forEach((chart) => chart.draw());
  addressMap?.draw();
  compared?.draw();
}

// The theme is the system's until the button chooses another one.
function changeTheme({ target }) {
  const themes = ["automatic", "light", "dark"], { dataset } = document.documentElement;
  const next = themes[(themes.indexOf(dataset.theme ?? "automatic") + 1) % themes.length];
  if (next === "automatic") delete dataset.theme;
  else dataset.theme = next;
  target.textContent = "Theme: " + next;
  redraw();
}

function begin() {
  const select = document.getElementById("series"), peaks = everySeries.map((one) => one.series.peak_used);
  const largest = peaks.indexOf(Math.max(...peaks));
  select.append(...everySeries.map((one, i) => make("option", { value: i, selected: i === largest }, one.name)));
  select.addEventListener("change", () => showSeries(everySeries[select.value]));
  document.getElementById("theme").addEventListener("click", changeTheme);
  for (const section of document.querySelectorAll("section"))
    document.getElementById("sections").append(make("a", { href: "#" + section.id }, section.firstChild.textContent));
  if (report.runs.length === 1) document.title = nameOf(report.runs[0]) + " \u2013 rmmshim report";
  showOverview();
  showTime();
  if (everySeries.length > 0) showSeries(everySeries[largest]);
  if (everySeries.length > 1) showComparison(0, counterpart(0));
  else fillSection("compare", faint("Give two recordings to compare them: rmmshim report BEFORE AFTER -o FILE."));
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

begin();
