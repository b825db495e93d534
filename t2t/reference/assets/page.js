// The picture of a network. Which groups are open decides what is drawn; dagre places the contents
// of each open group by themselves, so opening one lays out only that group and those around it.
"use strict";

const { boxes, groups, edges, heat } = JSON.parse(document.getElementById("data").textContent);
const root = groups[0];
const HEAD = 26, PAD = 14, GAP = 26, WIDEST = 260; // pixels
const byId = (id) => document.getElementById(id);
const svg = byId("picture"), view = byId("view"), details = byId("details");
const state = {
  sizes: false, heat: Boolean(heat), selected: null, hits: [], current: -1, x: 0, y: 0, scale: 1,
};
const drawn = new Map(); // item to { element, x, y, width, height } in the picture's coordinates
let drawnLines = [];

// ---- the graph ---------------------------------------------------------------------------------

// An item is a box or a group; its parent is the group that it stands in.
groups.forEach((group, index) => {
  Object.assign(group, {
    id: `g${index}`, isGroup: true, open: index === 0, parent: index ? groups[group.parent] : null,
    members: new Set(), boxes: [], within: [], incoming: [], outgoing: [], layout: null,
  });
});
boxes.forEach((box, index) => {
  Object.assign(box, { id: `b${index}`, parent: groups[box.group], inputs: [], readers: [] });
  for (let item = box; item.parent; item = item.parent) {
    item.parent.members.add(item);
    if (box.family !== "input") item.parent.boxes.push(box);
  }
});
const items = new Map([...groups, ...boxes].map((item) => [item.id, item]));

const around = (item) => (item.parent ? [item.parent, ...around(item.parent)] : []);
for (const item of items.values()) item.self = new Set([item, ...around(item)]);
const isInside = (item, group) => item.self.has(group);
const isShown = (item) => item.isGroup || !item.folded || state.sizes;

// A wire is a tensor on its way from one box to another.
for (const [from, output, to, input] of edges) {
  const source = boxes[from], target = boxes[to];
  const wire = { source, target, output, input, tensor: `${from}.${output}` };
  source.readers.push(wire);
  target.inputs.push(wire);
  const outer = around(source), inner = around(target);
  const common = outer.find((group) => inner.includes(group));
  common.within.push(wire);
  for (const group of outer.slice(0, outer.indexOf(common))) group.outgoing.push(wire);
  for (const group of inner.slice(0, inner.indexOf(common))) group.incoming.push(wire);
}
const tensorText = (wire) => wire.source.outputs[wire.output][1];
const briefText = (wire) => wire.source.outputs[wire.output][2];
const isShownWire = (wire) => isShown(wire.source) && isShown(wire.target);

// ---- texts -------------------------------------------------------------------------------------

const canvas = document.createElement("canvas").getContext("2d");
const FAMILY = getComputedStyle(document.body).fontFamily;

function widthOf(text, font) {
  canvas.font = `${font} ${FAMILY}`;
  return canvas.measureText(text).width;
}

function cut(text, font) {
  if (widthOf(text, font) <= WIDEST) return text;
  let end = text.length;
  while (end > 1 && widthOf(`${text.slice(0, end)}…`, font) > WIDEST) end -= 1;
  return `${text.slice(0, end)}…`;
}

function countText(count) {
  const unit = [[" G", 1e9], [" M", 1e6], [" k", 1e3]].find(([, size]) => count >= size);
  return unit ? (count / unit[1]).toPrecision(3) + unit[0] : String(count);
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const parameters = (group) => group.boxes.reduce((sum, box) => sum + box.parameters, 0);
const layers = (group) => group.boxes.filter((box) => !box.folded).length;

// The lines of an item's label: its name, what it is, and its heat.
function labelOf(item) {
  const title = item.isGroup ? item.title : item.called || item.operator;
  const lines = [];
  if (item.isGroup) {
    const count = parameters(item);
    lines.push(plural(layers(item), "layer") + (count ? ` · ${countText(count)} weights` : ""));
  } else {
    lines.push(`${item.kind.toLowerCase().replaceAll("_", " ")} ${item.brief}`.trim());
  }
  const value = state.heat ? heatOf(item) : undefined;
  const most = item.isGroup ? "≤ " : "";
  if (value !== undefined) lines.push(`${heat.label} ${most}${numberText(value)}`);
  return {
    title: cut(title, "600 12px"),
    rest: item.called && item.called !== item.operator ? item.operator : "",
    lines: lines.map((line) => cut(line, "11px")),
  };
}

function sizeOf(item) {
  if (item.isGroup && item.open) return layoutOf(item);
  const { title, rest, lines } = labelOf(item);
  const first = widthOf(title, "600 12px") + (rest ? widthOf(rest, "12px") + 6 : 0);
  const widths = [first + (item.isGroup ? 14 : 0), ...lines.map((line) => widthOf(line, "11px"))];
  return { width: Math.max(...widths) + 22, height: 24 + 15 * lines.length };
}

// ---- heat --------------------------------------------------------------------------------------

const values = boxes.map((box) => box.heat).filter((value) => value !== undefined).map(Number);
const finite = values.filter(Number.isFinite);
const positive = finite.filter((value) => value > 0);
const low = finite.length ? Math.min(...finite) : 0, high = finite.length ? Math.max(...finite) : 0;
const leastPositive = Math.min(...positive);
// Errors spread over powers of ten; times do not.
const isLog = low >= 0 && high > 100 * leastPositive;
const COLOURS = [[255, 247, 200], [254, 200, 90], [240, 120, 40], [190, 30, 40], [90, 0, 30]];

// The largest value in an item; what is not a number is larger than any.
function heatOf(item) {
  const found = (item.isGroup ? item.boxes : [item]).map((box) => box.heat)
    .filter((value) => value !== undefined).map(Number);
  if (!found.length) return undefined;
  return found.some(Number.isNaN) ? NaN : found.reduce((a, b) => Math.max(a, b));
}

function placeOnScale(value) {
  if (!Number.isFinite(value)) return value < 0 ? 0 : 1;
  if (high === low) return 0;
  if (!isLog) return (value - low) / (high - low);
  const start = Math.log(leastPositive);
  return value > 0 ? (Math.log(value) - start) / (Math.log(high) - start) : 0;
}

function colourAt(place) {
  const at = place * (COLOURS.length - 1), index = Math.min(Math.floor(at), COLOURS.length - 2);
  const mixed = COLOURS[index].map((c, i) => c + (COLOURS[index + 1][i] - c) * (at - index));
  return `rgb(${mixed.map(Math.round).join(" ")})`;
}

function numberText(value) {
  if (!Number.isFinite(value) || value === 0) return String(value);
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1e5 ? String(+value.toPrecision(3)) : value.toExponential(1);
}

// ---- layout ------------------------------------------------------------------------------------

const childOf = (group, item) => (item.parent === group ? item : childOf(group, item.parent));
const isOpen = (item) => Boolean(item.isGroup && item.open);

// Where everything directly inside an open group stands, relative to the group, and where the
// tensors that cross its border do so ("ins" at the top, "outs" at the bottom).
function layoutOf(group) {
  if (group.layout) return group.layout;
  const nodes = new Map(), lines = new Map();
  const members = [...group.members].filter(isShown);
  for (const item of members) nodes.set(item.id, sizeOf(item));
  const join = (from, to, wire, apart) => {
    const key = `${from}>${to}>${apart ? wire.tensor : ""}`;
    if (!lines.has(key)) lines.set(key, { from, to, wires: [], weight: 1, width: 0 });
    lines.get(key).wires.push(wire);
  };
  for (const wire of group.within.filter(isShownWire)) {
    const from = childOf(group, wire.source), to = childOf(group, wire.target);
    if (from !== to) join(from.id, to.id, wire, isOpen(from) || isOpen(to));
  }
  labelLines([...lines.values()]);
  const border = [];
  if (group.parent) addBorder(group, nodes, border, join);
  group.layout = arrange(group, members, nodes, [...lines.values()], border);
  return group.layout;
}

// One line of each tensor says what it is: that to an output, or the first one.
function labelLines(lines) {
  const labelled = new Set();
  const toOutput = ({ to }) => items.get(to).kind === "OUTPUT";
  for (const line of [...lines].sort((a, b) => toOutput(b) - toOutput(a))) {
    const tensors = new Set(line.wires.map((wire) => wire.tensor)), [first] = tensors;
    if (tensors.size === 1 && labelled.has(first)) continue;
    labelled.add(first);
    line.full = [...new Set(line.wires.map(tensorText))].join("\n");
    line.text = tensors.size === 1 ? briefText(line.wires[0]) : `${tensors.size} tensors`;
    line.width = Math.ceil(widthOf(line.text, "10px")) + 8;
  }
}

// Nodes stand for the border; heavy lines keep them above and below everything else.
function addBorder(group, nodes, border, join) {
  const add = (id, from, to) => {
    if (nodes.has(id)) return;
    nodes.set(id, { width: 2, height: 0 });
    border.push({ from, to, wires: [], weight: 1000, width: 0 });
  };
  nodes.set("top", { width: 0, height: 0 });
  nodes.set("bottom", { width: 0, height: 0 });
  for (const wire of group.incoming.filter(isShownWire)) {
    const id = `in ${wire.tensor}`;
    add(id, "top", id);
    join(id, childOf(group, wire.target).id, wire, true);
  }
  for (const wire of group.outgoing.filter(isShownWire)) {
    const id = `out ${wire.tensor}`;
    add(id, id, "bottom");
    join(childOf(group, wire.source).id, id, wire, true);
  }
}

// Let dagre place nodes and lines. Networks repeat their blocks, so what it said is kept.
const placements = new Map();
function place(sizes, links) {
  const key = JSON.stringify([sizes, links]);
  if (!placements.has(key)) {
    const graph = new dagre.graphlib.Graph({ multigraph: true });
    graph.setGraph({ nodesep: 22, edgesep: 12, ranksep: 22 });
    sizes.forEach(([width, height], i) => graph.setNode(String(i), { width, height }));
    links.forEach(([from, to, weight, width], i) => {
      const label = width ? { width, height: 13, labelpos: "r" } : {};
      graph.setEdge(String(from), String(to), { weight, ...label }, String(i));
    });
    dagre.layout(graph);
    placements.set(key, {
      width: graph.graph().width,
      nodes: sizes.map((_, i) => graph.node(String(i))),
      lines: links.map(([from, to], i) => graph.edge(String(from), String(to), String(i))),
    });
  }
  return placements.get(key);
}

function arrange(group, members, nodes, lines, border) {
  const ids = [...nodes.keys()], index = new Map(ids.map((id, i) => [id, i]));
  const placement = place(
    [...nodes.values()].map(({ width, height }) => [Math.ceil(width), Math.ceil(height)]),
    [...lines, ...border].map((l) => [index.get(l.from), index.get(l.to), l.weight, l.width]),
  );
  const inside = Boolean(group.parent);
  const title = inside ? widthOf(cut(group.title, "600 12px"), "600 12px") + 40 : 0;
  const width = inside ? Math.max(placement.width + 2 * PAD, title) : placement.width;
  const left = (placement.width - width) / 2;
  const corners = members.map((item) => {
    const { x, y } = placement.nodes[index.get(item.id)], size = nodes.get(item.id);
    return { x: x - size.width / 2 - left, y: y - size.height / 2, ...size };
  });
  const top = Math.min(...corners.map((corner) => corner.y)) - (inside ? HEAD + GAP : 0);
  const bottom = Math.max(...corners.map(({ y, height }) => y + height)) + (inside ? GAP : 0);
  for (const corner of corners) corner.y -= top;
  const layout = { width, height: bottom - top, ins: new Map(), outs: new Map(), lines: [] };
  layout.places = new Map(members.map((item, i) => [item, corners[i]]));
  ids.forEach((id, i) => {
    const [side, tensor] = id.split(" ");
    if (tensor) layout[`${side}s`].set(tensor, placement.nodes[i].x - left);
  });
  lines.forEach((line, i) => {
    const { points, x, y } = placement.lines[i];
    line.points = points.map((point) => ({ x: point.x - left, y: point.y - top }));
    Object.assign(line, { x: x - left, y: y - top });
  });
  for (const item of members.filter(isOpen)) {
    if (crossings(item, lines, 1) > crossings(item, lines, -1)) mirror(item);
  }
  settle(layout, lines, title);
  layout.lines = lines.map((line) => finishLine(line, layout));
  return layout;
}

// Let tensors cross the border of a group close to where they come from or go to inside it, and
// not behind its title.
function settle({ ins, outs, places, width }, lines, title) {
  for (const [side, inner, outer] of [[ins, "to", "from"], [outs, "from", "to"]]) {
    const wanted = [...side.keys()].map((tensor) => {
      const isOwn = (line) => line.wires[0].tensor === tensor && !items.has(line[outer]);
      const own = lines.filter(isOwn);
      const ends = own.map((line) => {
        const item = items.get(line[inner]), at = places.get(item), { points } = line;
        if (points.length > 3) return points.at(inner === "to" ? 1 : -2).x;
        const border = isOpen(item) && layoutOf(item)[inner === "to" ? "ins" : "outs"];
        return at.x + (border ? border.get(tensor) : at.width / 2);
      });
      return [tensor, ends.reduce((sum, x) => sum + x, 0) / ends.length];
    });
    const room = width - 10 - 12 * wanted.length;
    let free = side === ins ? Math.max(10, Math.min(title - 6, room)) : 10;
    wanted.sort((a, b) => a[1] - b[1]).forEach(([tensor, x], i) => {
      const last = width - 10 - 12 * (wanted.length - 1 - i);
      side.set(tensor, Math.max(free, Math.min(x, last)));
      free = side.get(tensor) + 12;
    });
  }
}

// How many pairs of lines cross at the border of an open group, as it is (1) or mirrored (-1).
function crossings(item, lines, direction) {
  const { ins, outs } = layoutOf(item);
  const pairs = (side, end, at) => lines.filter((line) => line[end] === item.id)
    .map((line) => [line.points.at(at).x, side.get(line.wires[0].tensor)]);
  const count = (ends) => ends.flatMap(([a, x], i) => ends.slice(i)
    .filter(([b, y]) => (a - b) * (x - y) * direction < 0)).length;
  return count(pairs(ins, "to", -2)) + count(pairs(outs, "from", 1));
}

// Move the ends of a line to the upper and lower sides of boxes, and to where its tensor crosses
// the border of an open group.
function finishLine({ from, to, points, ...line }, layout) {
  const path = [...points], last = path.length - 1, { tensor } = line.wires[0];
  const source = items.get(from), target = items.get(to);
  const end = (item, next) => {
    const at = layout.places.get(item), isBelow = next.y > at.y + at.height / 2;
    const side = isOpen(item) ? layoutOf(item)[isBelow ? "outs" : "ins"] : new Map();
    const above = Math.min(Math.max(next.x - at.x, 10), at.width - 10);
    return { x: at.x + (side.get(tensor) ?? above), y: at.y + (isBelow ? at.height : 0) };
  };
  path[0] = source ? end(source, path[1]) : { x: layout.ins.get(tensor), y: HEAD };
  path[last] = target ? end(target, path[last - 1])
    : { x: layout.outs.get(tensor), y: layout.height };
  if (path.length === 3 && !line.text) {
    // A short line without a label needs no bend but that between its ends.
    const y = (path[0].y + path[2].y) / 2;
    path.splice(1, 1, { x: path[0].x, y }, { x: path[2].x, y });
  }
  if (!source) path.unshift({ ...path[0], y: 0 });
  return { ...line, path, inward: !target || isOpen(target) };
}

// Turn the contents of an open group left to right.
function mirror(group) {
  const { width, places, ins, outs, lines } = group.layout;
  for (const place of places.values()) place.x = width - place.x - place.width;
  for (const side of [ins, outs]) side.forEach((x, tensor) => side.set(tensor, width - x));
  for (const line of lines) {
    line.x = width - line.x;
    for (const point of line.path) point.x = width - point.x;
  }
  [...places.keys()].filter(isOpen).forEach(mirror);
}

function forgetLayouts(item) {
  for (const group of item ? [item, ...around(item)] : groups) group.layout = null;
}

// ---- drawing -----------------------------------------------------------------------------------

function make(parent, tag, attributes = {}, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function draw() {
  view.replaceChildren();
  drawn.clear();
  drawnLines = [];
  drawInside(root, view, 0, 0);
  mark();
  move();
}

function drawInside(group, parent, x, y) {
  const { places, lines } = layoutOf(group);
  for (const line of lines) {
    const element = make(parent, "g", { class: `edge${line.inward ? " inward" : ""}` });
    make(element, "path", { d: curve(line.path) });
    if (line.text) {
      make(element, "text", { x: line.x, y: line.y + 3 }, line.text);
      make(element, "title", {}, line.full);
    }
    drawnLines.push({ element, wires: line.wires });
  }
  for (const [item, place] of places) drawItem(item, parent, place, x + place.x, y + place.y);
}

function drawItem(item, parent, { x, y, width, height }, left, top) {
  const open = isOpen(item);
  const element = make(parent, "g", {
    class: item.isGroup ? `group${open ? " open" : ""}` : `box${item.folded ? " folded" : ""}`,
    transform: `translate(${x} ${y})`, "data-id": item.id, tabindex: 0, role: "button",
  });
  element.setAttribute("aria-label", item.isGroup ? item.module || item.title : item.key);
  if (item.isGroup) element.setAttribute("aria-expanded", open);
  make(element, "title", {}, item.isGroup ? item.module || item.title : item.key);
  if (item.isGroup && !open) make(element, "rect", { x: 4, y: 4, width, height, rx: 6 });
  const rect = make(element, "rect", { width, height, rx: item.isGroup ? 6 : 4 });
  drawn.set(item, { element, x: left, y: top, width, height });
  const { title, rest, lines } = labelOf(item);
  if (open) {
    make(element, "rect", { class: "head", width, height: HEAD - 4, rx: 6 });
  } else {
    const value = state.heat ? heatOf(item) : undefined;
    if (value !== undefined) {
      const place = placeOnScale(value);
      rect.style.fill = colourAt(place);
      element.style.setProperty("--hot-text", place > 0.55 ? "#fff" : "#1b1f27");
      element.classList.add("hot");
    } else if (!item.isGroup) {
      rect.style.fill = `var(--${state.heat ? "input" : item.family})`;
    }
  }
  if (item.isGroup) make(element, "path", { d: open ? "M9 9.5l4 4l4-4" : "M10 8l4 4l-4 4" });
  const name = make(element, "text", { class: "title", x: item.isGroup ? 22 : 10, y: 16 }, title);
  if (rest) {
    name.append(" ");
    make(name, "tspan", { style: "font-weight: 400" }, rest);
  }
  if (open) drawInside(item, element, left, top);
  else {
    lines.forEach((line, i) => {
      make(element, "text", { class: "note", x: 10, y: 31 + 15 * i }, line);
    });
  }
}

// A smooth line: it passes the middle between each two of dagre's points.
function curve(points) {
  const text = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;
  const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  let path = `M${text(points[0])}`;
  for (let i = 1; i < points.length - 1; i += 1) {
    const end = i === points.length - 2 ? points[i + 1] : middle(points[i], points[i + 1]);
    path += `Q${text(points[i])} ${text(end)}`;
  }
  return points.length > 2 ? path : `${path}L${text(points[1])}`;
}

// Show what is selected, with the tensors that it reads and makes, and what was found.
function mark() {
  const hits = new Set(state.hits.map((hit) => {
    const closed = around(hit).reverse().find((group) => !group.open);
    return closed || hit;
  }));
  for (const [item, { element }] of drawn) {
    element.classList.toggle("selected", item === state.selected);
    element.classList.toggle("hit", hits.has(item));
  }
  const chosen = state.selected;
  const touches = ({ source, target }) => isInside(source, chosen) !== isInside(target, chosen);
  for (const { element, wires } of drawnLines) {
    element.classList.toggle("marked", Boolean(chosen) && wires.some(touches));
  }
}

// ---- zooming and panning -----------------------------------------------------------------------

function move() {
  view.setAttribute("transform", `translate(${state.x} ${state.y}) scale(${state.scale})`);
}

function room() {
  const { width, height } = svg.getBoundingClientRect();
  const panel = details.hidden ? 0 : details.getBoundingClientRect().width;
  return { width: Math.max(width - panel, 100), height };
}

function zoom(factor, x = room().width / 2, y = room().height / 2) {
  const scale = Math.min(4, Math.max(0.02, state.scale * factor));
  state.x = x - ((x - state.x) * scale) / state.scale;
  state.y = y - ((y - state.y) * scale) / state.scale;
  state.scale = scale;
  move();
}

// Show everything; at first rather the upper part than letters that are too small to read.
function fit(smallest = 0) {
  const { width, height } = layoutOf(root), space = room();
  // The legend stands below.
  const whole = Math.min((space.width - 40) / width, (space.height - 80) / height, 1.2);
  state.scale = Math.max(whole, smallest);
  state.x = (space.width - width * state.scale) / 2;
  state.y = Math.max((space.height - 40 - height * state.scale) / 2, 20);
  move();
}

function center(item) {
  const { x, y, width, height } = drawn.get(item), space = room();
  state.scale = Math.max(state.scale, 0.8);
  state.x = space.width / 2 - (x + width / 2) * state.scale;
  const above = Math.min((height / 2) * state.scale, space.height / 2 - 30);
  state.y = space.height / 2 - above - y * state.scale;
  move();
}

// Scrolling moves the picture; with Ctrl, or by a pinch, it zooms, as in other viewers.
svg.addEventListener("wheel", (event) => {
  event.preventDefault();
  const { left, top } = svg.getBoundingClientRect();
  const step = event.deltaMode ? 30 : 1;
  if (event.ctrlKey || event.metaKey) {
    const speed = Math.max(-60, Math.min(60, event.deltaY * step));
    zoom(Math.exp(-speed / 200), event.clientX - left, event.clientY - top);
    return;
  }
  state.x -= event.deltaX * step;
  state.y -= event.deltaY * step;
  move();
}, { passive: false });

let drag = null;
svg.addEventListener("pointerdown", (event) => {
  drag = { x: event.clientX, y: event.clientY, moved: false };
});
svg.addEventListener("pointermove", (event) => {
  if (!drag || !event.buttons) return;
  const x = event.clientX - drag.x, y = event.clientY - drag.y;
  if (!drag.moved && Math.hypot(x, y) < 4) return;
  svg.setPointerCapture(event.pointerId);
  drag = { x: event.clientX, y: event.clientY, moved: true };
  state.x += x;
  state.y += y;
  move();
});

// ---- opening, selecting, searching -------------------------------------------------------------

// Open or close a group; what was clicked stays where it is on the screen.
function toggle(group) {
  const before = drawn.get(group);
  group.open = !group.open;
  forgetLayouts(group);
  draw();
  const after = drawn.get(group);
  state.x += (before.x - after.x) * state.scale;
  state.y += (before.y - after.y) * state.scale;
  move();
}

function select(item) {
  state.selected = item;
  showDetails(item);
  mark();
}

function reveal(item) {
  if (!isShown(item)) setSizes(true);
  for (const group of around(item)) group.open = true;
  forgetLayouts(item);
  draw();
  select(item);
  center(item);
}

function setAll(open) {
  for (const group of groups.slice(1)) group.open = open;
  forgetLayouts();
  draw();
  fit(0.5);
}

function setSizes(shown) {
  state.sizes = byId("sizes").checked = shown;
  forgetLayouts();
  draw();
}

function textOf(item) {
  const texts = item.isGroup ? [item.module] : [item.key, item.operator, item.kind, item.line];
  return texts.join(" ").toLowerCase();
}

function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (item) => item !== root && words.every((word) => textOf(item).includes(word));
  state.hits = words.length ? [...groups, ...boxes].filter(matches) : [];
  state.current = -1;
  byId("found").textContent = words.length ? `${state.hits.length} found` : "";
  const list = byId("results");
  list.hidden = !state.hits.length;
  list.replaceChildren();
  for (const item of state.hits.slice(0, 100)) {
    const entry = addTo(list, "li", item.isGroup ? item.module || item.title : item.key);
    entry.dataset.item = item.id;
    addTo(entry, "small", item.isGroup ? "module" : `${item.kind.toLowerCase()} ${item.line}`);
  }
  const count = state.hits.length;
  if (count > 100) addTo(list, "li", `and ${count - 100} more`).className = "muted";
  mark();
}

// Go to the next thing found, or to the one before; the list makes room for it.
function nextResult(step) {
  const count = state.hits.length;
  if (!count) return;
  state.current = (state.current + step + count) % count;
  byId("results").hidden = true;
  byId("found").textContent = `${state.current + 1} of ${count}`;
  reveal(state.hits[state.current]);
}

// ---- details -----------------------------------------------------------------------------------

function addTo(parent, tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  parent.append(element);
  return element;
}

function addTable(title, rows) {
  if (!rows.length) return;
  addTo(details, "h3", title);
  const table = addTo(details, "table", "");
  for (const [name, value, item] of rows) {
    const row = addTo(table, "tr", "");
    addTo(row, "td", name);
    const cell = addTo(row, "td", item ? "" : value);
    if (item) {
      addTo(cell, "span", value ? `${value} ` : "");
      addTo(cell, "a", item.key).onclick = () => reveal(item);
    }
  }
}

function showDetails(item) {
  details.hidden = !item;
  details.replaceChildren();
  if (!item) return;
  const close = addTo(details, "button", "×");
  close.className = "close";
  close.setAttribute("aria-label", "Close");
  close.onclick = () => select(null);
  addTo(details, "h2", item.isGroup ? item.module || item.title : item.key);
  if (item.isGroup) showGroup(item);
  else showBox(item);
  details.scrollTop = 0;
}

function showBox(box) {
  addTo(details, "p", box.kind).className = "muted";
  if (box.line) addTo(addTo(details, "p", ""), "code", box.line);
  addTable("Layer", [
    ["operator", box.operator],
    ...(box.module ? [["module", box.module]] : []),
    ...(box.heat === undefined ? [] : [[heat.label, numberText(Number(box.heat))]]),
    ...(box.folded ? [["use", "arithmetic of sizes"]] : []),
  ]);
  addTable("Attributes", box.attributes.map((text) => [
    text.slice(0, text.indexOf("=")), text.slice(text.indexOf("=") + 1),
  ]));
  addTable("Weights and constants", box.weights);
  addTable("Inputs", box.inputs.map((wire) => [
    String(wire.input), tensorText(wire), wire.source,
  ]));
  addTable("Outputs", box.outputs.map(([name, text], i) => [String(i), text]));
  addTable("Read by", box.readers.map((wire) => [String(wire.output), "", wire.target]));
}

function showGroup(group) {
  const members = group.boxes.filter(isShown);
  const kinds = new Map();
  for (const { kind } of members) kinds.set(kind, (kinds.get(kind) || 0) + 1);
  addTable("Module", [
    ["layers", String(members.length)],
    ["weights", parameters(group).toLocaleString("en")],
  ]);
  const hot = members.filter((box) => box.heat !== undefined);
  if (hot.length) {
    const most = heatOf({ isGroup: true, boxes: hot });
    const hottest = hot.find((box) => Object.is(Number(box.heat), most));
    const total = hot.reduce((sum, box) => sum + Number(box.heat), 0);
    addTable(heat.label, [
      ["largest", numberText(Number(hottest.heat)), hottest], ["total", numberText(total)],
    ]);
  }
  addTable("Kinds of layers", [...kinds].sort((a, b) => b[1] - a[1])
    .map(([kind, count]) => [kind.toLowerCase(), String(count)]));
  const across = (wires, end) => [...new Map(wires.filter(isShownWire)
    .map((wire) => [wire.tensor, ["", tensorText(wire), wire[end]]])).values()];
  addTable("Inputs", across(group.incoming, "source"));
  addTable("Outputs", across(group.outgoing, "source"));
}

function showLegend() {
  const legend = byId("legend");
  legend.replaceChildren();
  const entry = (text, style) => {
    const span = addTo(legend, "span", "");
    Object.assign(addTo(span, "i", "").style, style);
    span.append(text);
    return span;
  };
  if (state.heat) {
    const start = isLog ? leastPositive : low;
    const label = `${heat.label}${isLog ? " (log)" : ""}`;
    const span = addTo(legend, "span", `${label}: ${numberText(start)}`);
    const scale = addTo(span, "i", "");
    scale.className = "scale";
    const stops = [0, 0.25, 0.5, 0.75, 1].map(colourAt);
    scale.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
    span.append(numberText(high));
    entry("no value", { background: "var(--input)" });
  } else {
    const used = new Set(boxes.map((box) => box.family));
    for (const family of ["compute", "pointwise", "movement", "control"]) {
      if (used.has(family)) entry(family, { background: `var(--${family})` });
    }
    entry("input, output", { background: "var(--input)" });
  }
  entry("module (click to open)", { background: "var(--group)" });
  addTo(legend, "span", "drag or scroll to move, Ctrl+scroll to zoom");
}

// ---- controls ----------------------------------------------------------------------------------

function activate(item, head) {
  if (item.isGroup && (!item.open || head)) toggle(item);
  select(item);
  // The panel of details must not hide what it is about.
  const { x, width } = drawn.get(item), left = state.x + x * state.scale;
  const over = left + width * state.scale - (room().width - 12);
  if (over > 0) state.x -= Math.min(over, left - 12);
  move();
}

svg.addEventListener("click", (event) => {
  if (drag && drag.moved) return;
  const element = event.target.closest("[data-id]");
  const item = element && items.get(element.dataset.id);
  const head = event.target.matches(".head, .open > text, .open > path");
  if (!item || (isOpen(item) && !head)) select(null);
  else activate(item, head);
});
svg.addEventListener("keydown", (event) => {
  const item = items.get(event.target.dataset.id);
  if (!item || (event.key !== "Enter" && event.key !== " ")) return;
  event.preventDefault();
  activate(item, true);
  drawn.get(item).element.focus();
});
document.addEventListener("keydown", (event) => {
  if (event.target === byId("search") || event.ctrlKey || event.metaKey || event.altKey) return;
  const actions = {
    "/": () => byId("search").focus(), "+": () => zoom(1.25), "-": () => zoom(0.8),
    0: () => fit(), Escape: () => select(null),
  };
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});
byId("search").addEventListener("input", (event) => search(event.target.value));
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "ArrowDown") nextResult(1);
  else if (event.key === "ArrowUp") nextResult(-1);
  else if (event.key === "Escape") {
    event.target.value = "";
    search("");
    event.target.blur();
  } else return;
  event.preventDefault();
});
byId("results").addEventListener("click", (event) => {
  const entry = event.target.closest("[data-item]");
  if (!entry) return;
  state.current = state.hits.indexOf(items.get(entry.dataset.item)) - 1;
  nextResult(1);
});
svg.addEventListener("pointerdown", () => { byId("results").hidden = true; });
byId("expand").onclick = () => setAll(true);
byId("collapse").onclick = () => setAll(false);
byId("in").onclick = () => zoom(1.25);
byId("out").onclick = () => zoom(0.8);
byId("fit").onclick = () => fit();
byId("sizes").onchange = (event) => setSizes(event.target.checked);
byId("heat").onchange = (event) => {
  state.heat = event.target.checked;
  forgetLayouts();
  showLegend();
  draw();
};
byId("theme").onclick = () => {
  const { dataset } = document.documentElement;
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = dataset.theme || (isDark ? "dark" : "light");
  dataset.theme = now === "dark" ? "light" : "dark";
};

const folded = boxes.filter((box) => box.folded).length;
byId("sizes-toggle").hidden = !folded;
byId("sizes-toggle").lastElementChild.textContent = `Shape arithmetic (${folded})`;
byId("heat-toggle").hidden = !heat;
if (heat) byId("heat-toggle").lastElementChild.textContent = `Colour by ${heat.label}`;
// A picture of one or two modules would tell nothing: open them until there is something to see.
for (let few = true; few;) {
  const seen = [...drawnAtFirst(root)].filter((item) => item.family !== "input");
  const closed = seen.filter((item) => item.isGroup);
  few = seen.length < 4 && closed.length > 0;
  if (few) closed.forEach((group) => { group.open = true; });
}
function* drawnAtFirst(group) {
  for (const item of group.members) {
    if (isOpen(item)) yield* drawnAtFirst(item);
    else if (isShown(item)) yield item;
  }
}
showLegend();
draw();
fit(0.5);
// A frame in a notebook gets its size late; what someone has moved stays where it is.
let isTouched = Boolean(location.hash);
for (const kind of ["pointerdown", "wheel", "keydown"]) {
  document.addEventListener(kind, () => { isTouched = true; }, { capture: true, passive: true });
}
new ResizeObserver(() => { if (!isTouched) fit(0.5); }).observe(svg);
// net.html#layer1.0 leads to a layer or module; the browser writes it in its own way.
const isLinked = (name) => name && new URL(`#${name}`, "file:///").hash === location.hash;
const linked = location.hash
  && [...groups, ...boxes].find((item) => isLinked(item.key) || isLinked(item.module));
if (linked) reveal(linked);
