// SPDX-License-Identifier: Apache-2.0
// Plots of the page of `rmmshim report`: memory over time, a flame graph, and a map of addresses.
//
// Programs chose the texts of the document: they become text nodes and attributes, never HTML.
"use strict";

// ---- elements ----

// Makes an element. Attributes named on<event> are listeners; children are nodes or texts.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

// ---- numbers for people ----

const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

function bytesText(bytes) {
  let unit = 0, value = Math.abs(bytes);
  while (value >= 1024 && unit + 1 < BYTE_UNITS.length) { value /= 1024; unit++; }
  const digits = unit === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return (bytes < 0 ? "\u2212" : "") + value.toFixed(digits) + " " + BYTE_UNITS[unit];
}

// Writes a duration. The axis of a long recording that is zoomed needs more digits than other places.
function timeText(ns, digits = 4) {
  for (const [size, unit] of [[3600e9, "h"], [60e9, "min"], [1e9, "s"], [1e6, "ms"], [1e3, "\u00b5s"]])
    if (ns >= size) return (ns / size).toPrecision(digits).replace(/\.?0+$/, "") + " " + unit;
  return Math.round(ns) + " ns";
}

function countText(count) {
  return count.toLocaleString("en");
}

// The present value of a CSS variable, which depends on the theme.
function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

// The same hue for the same text, so that a call site looks alike everywhere.
function hueOf(text) {
  let hash = 2166136261;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  return (hash >>> 0) % 360;
}

// Fits a canvas to its place. Returns its context, and its size in CSS pixels.
function prepare(canvas, height) {
  const width = Math.max(canvas.parentElement.clientWidth, 100), ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
}

// A step of 1, 2 or 5 times a power of the base that divides `span` into at most `most` parts.
function niceStep(span, most, base = 10) {
  let step = base === 2 ? 1 : Math.pow(10, Math.floor(Math.log10(span / most)));
  if (base === 2) { while (span / step > most) step *= 2; return step; }
  for (const factor of [1, 2, 5, 10]) if (span / (step * factor) <= most) return step * factor;
  return step * 10;
}

// ---- memory over time ----

const PLOT = { left: 84, right: 12, top: 8, bottom: 24, height: 210 };
const MAP = { left: 116, row: 18 };

// The part of the time that all charts show. They are zoomed together.
class View {
  constructor(end) {
    this.end = Math.max(end, 1);
    this.from = 0;
    this.to = this.end;
    this.listeners = [];
  }

  show(from, to) {
    const span = Math.min(Math.max(to - from, this.end / 1e7, 10), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - span);
    this.to = this.from + span;
    this.listeners.forEach((listener) => listener());
  }

  // Makes the span `factor` times as long around a place between 0 and 1.
  zoom(factor, at = 0.5) {
    const center = this.from + (this.to - this.from) * at, span = (this.to - this.from) * factor;
    this.show(center - span * at, center + span * (1 - at));
  }

  pan(part) {
    const by = (this.to - this.from) * part;
    this.show(this.from + by, this.to + by);
  }

  all() {
    this.show(0, this.end);
  }

  // Handles a key. True if it is one that zooms or moves.
  key(key) {
    const actions = {
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), "0": () => this.all(),
      ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2),
      Home: () => this.pan(-1e9), End: () => this.pan(1e9),
    };
    if (!actions[key]) return false;
    actions[key]();
    return true;
  }
}

// One kind of memory on one device.  `lines` are [{series, offset, color}]; the first one is filled.
class Chart {
  constructor(view, lines, run, title) {
    this.view = view;
    this.lines = lines;
    this.run = run;
    const label = title + ". Keys: + and - zoom, arrows move, 0 shows all.";
    this.canvas = make("canvas", { tabindex: "0", role: "img", "aria-label": label });
    this.said = make("div", { class: "said", "aria-live": "polite" });
    this.element = make("div", { class: "chart" }, this.canvas, this.said);
    this.listen();
    view.listeners.push(() => this.draw());
  }

  listen() {
    const canvas = this.canvas;
    canvas.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && this.view.key(event.key)) event.preventDefault();
    });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.drag = this.placeOf(event);
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      this.pointer = this.placeOf(event);
      this.draw();
      this.say(this.view.from + (this.view.to - this.view.from) * this.pointer);
    });
    canvas.addEventListener("pointerup", (event) => {
      const begin = this.drag, end = this.placeOf(event), { from, to } = this.view;
      this.drag = undefined;
      if (begin !== undefined && Math.abs(end - begin) * this.width > 4)
        this.view.show(from + (to - from) * Math.min(begin, end), from + (to - from) * Math.max(begin, end));
    });
    canvas.addEventListener("pointerleave", () => {
      this.pointer = this.drag = undefined;
      this.said.textContent = "";
      this.draw();
    });
    canvas.addEventListener("dblclick", () => this.view.all());
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return; // the page scrolls
      event.preventDefault();
      this.view.zoom((event.deltaY || event.deltaX) > 0 ? 1.3 : 1 / 1.3, this.placeOf(event));
    }, { passive: false });
  }

  // Where in the plot the pointer is, between 0 and 1.
  placeOf(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left - PLOT.left;
    return Math.min(Math.max(x / this.width, 0), 1);
  }

  // The amounts at a time: the bucket there, or what holds after the bucket before it.
  at(line, ns) {
    const rows = line.series.timeline, index = Math.floor((ns - line.offset) / line.series.bucket_ns);
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle][0] <= index) low = middle + 1; else high = middle;
    }
    if (low === 0) return [0, 0, 0, 0, 0, 0, 0];
    const row = rows[low - 1];
    return row[0] === index ? row : [index, row[3], row[3], row[3], row[5], row[5], row[6]];
  }

  say(ns) {
    this.said.textContent = timeText(ns) + ": " + this.lines.map((line) => {
      const [, least, most, , held, , limit] = this.at(line, ns);
      const used = "used " + (least === most ? "" : bytesText(least) + " to ") + bytesText(most);
      return (line.name ? line.name + " " : "") + used + (line.series.peak_held ? ", held " + bytesText(held) : "") +
        (limit ? ", limit " + bytesText(limit) : "");
    }).join("; ");
  }

  x(ns) {
    return PLOT.left + this.width * (ns - this.view.from) / (this.view.to - this.view.from);
  }

  y(bytes) {
    return PLOT.top + this.plotHeight * (1 - bytes / this.top);
  }

  // The rows that are seen, with the one before them, whose last value holds at the left edge.
  visible(line) {
    const { timeline, bucket_ns: width } = line.series, from = (this.view.from - line.offset) / width - 1;
    const to = (this.view.to - line.offset) / width;
    let first = timeline.findIndex((row) => row[0] >= from);
    if (first < 0) first = timeline.length;
    let end = first;
    while (end < timeline.length && timeline[end][0] <= to) end++;
    return timeline.slice(Math.max(first - 1, 0), end);
  }

  // Draws steps: each row's value in `column`, then its value in `after` up to the next row.
  path(context, line, rows, column, after, isClosed) {
    const bottom = this.y(0), end = Math.min(this.x(line.offset + line.end), this.x(this.view.to));
    const at = (bucket) => Math.max(this.x(line.offset + bucket * line.series.bucket_ns), PLOT.left - 2);
    context.beginPath();
    rows.forEach((row, i) => {
      const x = at(row[0]), next = Math.max(Math.min(at(row[0] + 1), end), x);
      if (i === 0) context.moveTo(x, isClosed ? bottom : this.y(row[column]));
      context.lineTo(x, this.y(row[column]));
      context.lineTo(next, this.y(row[column]));
      context.lineTo(next, this.y(row[after]));
      context.lineTo(i + 1 < rows.length ? at(rows[i + 1][0]) : Math.max(end, next), this.y(row[after]));
    });
    if (isClosed && rows.length) { context.lineTo(Math.max(end, PLOT.left - 2), bottom); context.closePath(); }
  }

  scale(shown) {
    let top = 1, limit = 0;
    for (const row of shown.flat()) {
      top = Math.max(top, row[2], row[4]);
      limit = Math.max(limit, row[6]);
    }
    this.top = 1.06 * (limit && limit < 2 * top ? Math.max(top, limit) : top);
  }

  axes(context) {
    const { from, to } = this.view;
    context.strokeStyle = color("line");
    context.fillStyle = color("faint");
    context.lineWidth = 1;
    context.textAlign = "right";
    const step = niceStep(this.top, 5, 2);
    for (let bytes = 0; bytes <= this.top; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      context.beginPath(); context.moveTo(PLOT.left, y); context.lineTo(PLOT.left + this.width, y); context.stroke();
      context.fillText(bytesText(bytes), PLOT.left - 6, y + 4);
    }
    context.textAlign = "center";
    const tick = niceStep(to - from, Math.max(Math.floor(this.width / 110), 1));
    for (let ns = Math.ceil(from / tick) * tick; ns <= to; ns += tick) {
      const x = Math.min(Math.max(this.x(ns), PLOT.left + 16), PLOT.left + this.width - 20);
      context.fillText(timeText(ns, 6), x, PLOT.top + this.plotHeight + 16);
    }
  }

  // Phases lie behind the curves, refusals and waits before them.
  phases(context) {
    const offset = this.lines[0].offset, end = this.lines[0].end;
    context.textAlign = "left";
    (this.run ? this.run.phases : []).forEach((phase) => phase.occurrences.forEach(([begin, stop]) => {
      const left = Math.max(this.x(offset + begin), PLOT.left);
      const right = Math.min(this.x(offset + (stop ?? end)), PLOT.left + this.width);
      if (right < PLOT.left || left > PLOT.left + this.width) return;
      context.fillStyle = color("phase");
      context.fillRect(left, PLOT.top, Math.max(right - left - 1, 1), this.plotHeight);
      if (right - left < 40) return;
      context.save();
      context.beginPath(); context.rect(left, PLOT.top, right - left - 4, 20); context.clip();
      context.fillStyle = color("faint");
      context.fillText(phase.name, left + 4, PLOT.top + 12);
      context.restore();
    }));
  }

  incidents(context) {
    const offset = this.lines[0].offset, y = PLOT.top + this.plotHeight;
    for (const [kind, name] of [["waits", "waited"], ["refusals", "refused"]]) {
      context.fillStyle = color(name);
      (this.run ? this.run[kind].first : []).forEach(([ns, duration]) => {
        const x = this.x(offset + ns), left = this.x(offset + ns - duration);
        if (x < PLOT.left || left > PLOT.left + this.width) return;
        if (kind === "waits") {
          context.fillRect(Math.max(left, PLOT.left), y - 4, Math.max(x - left, 2), 4);
          return;
        }
        context.beginPath();
        context.moveTo(x - 5, PLOT.top);
        context.lineTo(x + 5, PLOT.top);
        context.lineTo(x, PLOT.top + 9);
        context.fill();
      });
    }
  }

  fill(context, line, rows, name, column) {
    context.fillStyle = color(name);
    this.path(context, line, rows, column, 3, true);
    context.fill();
  }

  stroke(context, line, rows, name, column, after, width) {
    context.lineWidth = width;
    context.strokeStyle = color(name);
    this.path(context, line, rows, column, after, false);
    context.stroke();
  }

  curves(context, line, rows, isFirst) {
    const limited = rows.filter((row) => row[6] > 0);
    if (isFirst) {
      this.fill(context, line, rows, "band", 2);
      this.fill(context, line, rows, "used", 1);
    }
    this.stroke(context, line, rows, line.color || "used", 2, 3, isFirst ? 1.2 : 2);
    if (line.series.peak_held && this.run) this.stroke(context, line, rows, "held", 4, 5, 1.6);
    if (limited.some((row) => row[6] <= this.top)) {
      context.setLineDash([6, 4]);
      this.stroke(context, line, limited, "limit", 6, 6, 1.6);
      context.setLineDash([]);
    }
  }

  // Where the pointer is, and what it has been dragged over.
  mark(context) {
    const at = (place) => PLOT.left + place * this.width;
    if (this.pointer === undefined) return;
    context.fillStyle = color("faint");
    context.fillRect(at(this.pointer), PLOT.top, 1, this.plotHeight);
    if (this.drag === undefined) return;
    context.globalAlpha = 0.25;
    context.fillRect(at(this.drag), PLOT.top, at(this.pointer) - at(this.drag), this.plotHeight);
  }

  draw() {
    if (!this.canvas.isConnected) return;
    const { context, width } = prepare(this.canvas, PLOT.height);
    this.width = width - PLOT.left - PLOT.right;
    this.plotHeight = PLOT.height - PLOT.top - PLOT.bottom;
    const shown = this.lines.map((line) => this.visible(line));
    this.scale(shown);
    this.phases(context);
    this.axes(context);
    context.save();
    context.beginPath(); context.rect(PLOT.left, PLOT.top - 2, this.width, this.plotHeight + 3); context.clip();
    this.lines.forEach((line, i) => this.curves(context, line, shown[i], i === 0));
    this.incidents(context);
    this.mark(context);
    context.restore();
  }
}

// ---- a flame graph ----

// A tree of frames with the bytes beneath each, the outermost on top.  `stacks` are [{frames, bytes}] with the
// innermost frame first.
function flameTree(stacks) {
  const root = { name: "all", bytes: 0, children: new Map(), parent: null };
  for (const { frames, bytes } of stacks) {
    let node = root;
    node.bytes += bytes;
    for (let i = frames.length - 1; i >= 0; i--) {
      if (!node.children.has(frames[i]))
        node.children.set(frames[i], { name: frames[i], bytes: 0, children: new Map(), parent: node });
      node = node.children.get(frames[i]);
      node.bytes += bytes;
    }
  }
  return root;
}

class Flame {
  constructor(stacks, shorten) {
    this.root = this.shown = flameTree(stacks);
    this.shorten = shorten;
    this.find = make("input", { type: "search", placeholder: "Find a function", "aria-label": "Find a function",
      oninput: () => this.draw() });
    this.back = make("button", { type: "button", onclick: () => this.show(this.root) }, "Show all");
    this.said = make("span", { class: "said", "aria-live": "polite" });
    this.graph = make("div", { class: "flame", role: "group", "aria-label": "Flame graph of the memory at the peak" });
    this.element = make("div", {}, make("div", { class: "row" }, this.find, this.back, this.said), this.graph);
    this.graph.addEventListener("keydown", (event) => this.key(event));
  }

  show(node) {
    this.shown = node;
    this.draw();
    this.graph.querySelector("button.shown")?.focus();
  }

  // The arrows go to frames above, below and beside.
  key(event) {
    const node = this.nodes.get(event.target);
    const below = (one) => [...one?.children.values() ?? []].filter((child) => this.buttons.has(child));
    const beside = (by) => below(node.parent)[below(node.parent).indexOf(node) + by];
    const goals = { ArrowUp: () => node.parent, ArrowDown: () => below(node)[0], ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1) };
    const goal = node && goals[event.key]?.();
    if (event.key === "Escape") this.show(this.root);
    if (!goal) return;
    event.preventDefault();
    this.buttons.get(goal)?.focus();
  }

  text(node) {
    const part = 100 * node.bytes / Math.max(this.root.bytes, 1);
    return node.name + ": " + bytesText(node.bytes) + ", " + part.toFixed(1) + " % of the peak";
  }

  place(node, left, width, level, isAbove) {
    const wanted = this.find.value.toLowerCase(), name = this.shorten(node.name);
    const say = () => { this.said.textContent = this.text(node); };
    const button = make("button", { type: "button", title: this.text(node), onclick: () => this.show(node),
      onfocus: say, onpointerenter: say }, name);
    button.style.cssText = `left:${left * 100}%;width:${width * 100}%;top:${level * 21}px;--hue:${hueOf(name)}`;
    button.classList.toggle("above", isAbove);
    button.classList.toggle("shown", node === this.shown);
    button.classList.toggle("found", wanted !== "" && node.name.toLowerCase().includes(wanted));
    this.graph.append(button);
    this.nodes.set(button, node);
    this.buttons.set(node, button);
    this.levels = Math.max(this.levels, level + 1);
  }

  // Frames too narrow to be seen are left out.
  below(node, left, width, level) {
    this.place(node, left, width, level, false);
    let at = left;
    for (const child of [...node.children.values()].sort((a, b) => b.bytes - a.bytes)) {
      const part = width * child.bytes / Math.max(node.bytes, 1);
      if (part > 0.0015 && level < 200) this.below(child, at, part, level + 1);
      at += part;
    }
  }

  draw() {
    const above = [];
    for (let node = this.shown.parent; node; node = node.parent) above.unshift(node);
    this.graph.replaceChildren();
    this.nodes = new Map();
    this.buttons = new Map();
    this.levels = 0;
    above.forEach((node, level) => this.place(node, 0, 1, level, true));
    this.below(this.shown, 0, 1, above.length);
    this.graph.style.height = this.levels * 21 + "px";
    this.back.disabled = this.shown === this.root;
  }
}

// ---- a map of addresses ----

// Draws ranges of addresses, in rows of rowBytes each. A new range begins after a large gap.
class AddressMap {
  // `spans` are [address, length, used bytes, site].
  constructor(spans, describe, keyOf) {
    this.spans = spans;
    this.describe = describe;
    this.keyOf = keyOf;
    this.chosen = -1;
    this.canvas = make("canvas", { tabindex: "0", role: "img",
      "aria-label": "Blocks by address. Keys: the arrows go from block to block." });
    this.said = make("div", { class: "said", "aria-live": "polite" });
    this.element = make("div", { class: "chart" }, this.canvas, this.said);
    this.canvas.addEventListener("pointermove", (event) => this.choose(this.spanAt(event)));
    this.canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
      const by = steps[event.key];
      if (!by) return;
      event.preventDefault();
      this.choose(Math.min(Math.max(this.chosen + by, 0), spans.length - 1));
    });
    this.ranges = this.findRanges();
  }

  findRanges() {
    const used = this.spans.reduce((sum, span) => sum + span[2], 0), far = Math.max(used / 8, 64 * 1024 * 1024);
    const ranges = [];
    for (const [address, length] of this.spans) {
      const last = ranges[ranges.length - 1];
      if (last && address - last.end <= far) last.end = Math.max(last.end, address + length);
      else ranges.push({ begin: address, end: address + length });
    }
    return ranges;
  }

  // The free bytes between blocks of the same range: the most that fragmentation can cost.
  gaps() {
    const begins = new Set(this.ranges.map((range) => range.begin));
    let end = Infinity, bytes = 0, largest = 0, count = 0;
    for (const [address, length] of this.spans) {
      const gap = begins.has(address) ? 0 : Math.max(address - end, 0);
      bytes += gap;
      largest = Math.max(largest, gap);
      count += gap > 0;
      end = Math.max(begins.has(address) ? 0 : end, address + length);
    }
    return { bytes, largest, count };
  }

  choose(index) {
    if (index === this.chosen) return;
    this.chosen = index;
    this.said.textContent = index < 0 ? "" : this.describe(this.spans[index]);
    this.draw();
  }

  spanAt(event) {
    const box = this.canvas.getBoundingClientRect(), x = event.clientX - box.left - MAP.left;
    const row = Math.floor((event.clientY - box.top) / MAP.row);
    const range = this.ranges.find((one) => row >= one.row && row < one.row + one.rows);
    if (!range || x < 0) return -1;
    const address = range.begin + (row - range.row + Math.min(x / this.width, 1)) * this.rowBytes;
    const least = this.rowBytes / this.width; // a pixel
    return this.spans.findIndex((span) => address >= span[0] && address < span[0] + Math.max(span[1], least));
  }

  draw() {
    if (!this.canvas.isConnected) return;
    const all = this.ranges.reduce((sum, range) => sum + range.end - range.begin, 0);
    this.rowBytes = 4096;
    while (all / this.rowBytes > 24) this.rowBytes *= 2;
    let rows = 0;
    for (const range of this.ranges.slice(0, 100)) {
      range.row = rows;
      range.rows = Math.max(Math.ceil((range.end - range.begin) / this.rowBytes), 1);
      rows += range.rows;
    }
    const { context, width } = prepare(this.canvas, rows * MAP.row + 4);
    this.width = width - MAP.left - 8;
    this.drawn = context;
    this.ranges.slice(0, 100).forEach((range) => this.drawRange(range));
  }

  drawRange(range) {
    const context = this.drawn;
    const put = (x, y, width) => context.fillRect(MAP.left + x, y, width, 15);
    context.fillStyle = color("faint");
    context.textAlign = "left";
    context.fillText("0x" + range.begin.toString(16), 0, range.row * MAP.row + 13);
    context.fillStyle = color("phase");
    this.pieces(range, range.begin, range.end, put);
    this.spans.forEach(([address, length, used, site], index) => {
      if (address < range.begin || address >= range.end) return;
      context.globalAlpha = 0.35 + 0.65 * used / Math.max(length, 1);
      context.fillStyle = index === this.chosen ? color("held") : `hsl(${hueOf(this.keyOf(site))} 45% 55%)`;
      this.pieces(range, address, address + length, (x, y, width) => put(x, y, Math.max(width - 0.5, 0.5)));
      context.globalAlpha = 1;
    });
  }

  // Calls `put` for the part of each row that lies between two addresses.
  pieces(range, begin, end, put) {
    for (let at = begin; at < end;) {
      const row = Math.floor((at - range.begin) / this.rowBytes);
      const stop = Math.min(end, range.begin + (row + 1) * this.rowBytes);
      const x = (at - range.begin - row * this.rowBytes) / this.rowBytes * this.width;
      put(x, (range.row + row) * MAP.row, (stop - at) / this.rowBytes * this.width);
      at = stop;
    }
  }
}
