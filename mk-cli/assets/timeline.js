// Draws the trace in #data on a canvas. Times are picoseconds from the start of the run, x is in CSS pixels.
'use strict';
(() => {
const GUTTER = 118, AXIS = 26, RANK = 24, RANK_GAP = 8, LEAST_PS = 1000;
const $ = (id) => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const run = Math.max(data.run, 1);
const axis = $('axis'), canvas = $('rows'), scroller = $('scroller'), content = $('content'), tip = $('tip');

// ---- What there is ----

// Numbers of a track as arrays. `reach[i]` is the latest end of slices 0..=i: by it, the first one in view is found.
function unpack(numbers) {
  const n = numbers.length / 4;
  const t = { n, from: new Float64Array(n), to: new Float64Array(n), reach: new Float64Array(n), name: new Int32Array(n), task: new Float64Array(n) };
  for (let i = 0, at = 0, reach = 0; i < n; i++) {
    at += numbers[4 * i];
    t.from[i] = at;
    t.to[i] = at + numbers[4 * i + 1];
    t.reach[i] = reach = Math.max(reach, t.to[i]);
    t.name[i] = numbers[4 * i + 2];
    t.task[i] = numbers[4 * i + 3];
  }
  return t;
}

const stream = (raw) => ({ tasks: unpack(raw.tasks), waits: unpack(raw.waits) });
const ranks = data.ranks.map((r) => ({
  rank: r.rank, exposed: r.exposed, open: true,
  lanes: r.lanes.map((l) => ({ lane: l.lane, compute: stream(l.compute), comm: stream(l.comm) })),
}));
const hasComm = ranks.some((r) => r.lanes.some((l) => l.comm.tasks.n + l.comm.waits.n > 0));

// The first slice that ends after `at`.
function first(t, at) {
  let low = 0, high = t.n;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (t.reach[middle] > at) high = middle; else low = middle + 1;
  }
  return low;
}

// ---- Where it is ----

const lanes = ranks.reduce((n, r) => n + r.lanes.length, 0);
const height = lanes <= 40 ? { compute: 13, comm: hasComm ? 5 : 0, gap: 3 }
  : lanes <= 200 ? { compute: 8, comm: hasComm ? 3 : 0, gap: 2 } : { compute: 6, comm: hasComm ? 2 : 0, gap: 1 };
const pitch = height.compute + height.comm + height.gap;
const view = { from: 0, to: run };
let width = 800, visible = 400, total = 0, drawnRows = 0, pointer = null, hovered = null, asked = false;

const plot = () => Math.max(width - GUTTER - 12, 50);
const scale = () => plot() / (view.to - view.from);
const x = (ps) => GUTTER + (ps - view.from) * scale();
const at = (px) => view.from + (px - GUTTER) / scale();

function place() {
  total = 0;
  for (const r of ranks) {
    r.y = total;
    total += RANK + (r.open ? r.lanes.length * pitch : 0) + RANK_GAP;
    r.button.style.top = `${r.y + 2}px`;
    r.button.setAttribute('aria-expanded', r.open);
    r.arrow.textContent = r.open ? '▾' : '▸';
  }
  $('fold').textContent = ranks.some((r) => r.open) ? 'fold all' : 'unfold all';
  content.style.height = `${total}px`;
  resize();
}

function size(c, w, h) {
  const dots = window.devicePixelRatio || 1;
  c.style.width = `${w}px`;
  c.style.height = `${h}px`;
  c.width = Math.round(w * dots);
  c.height = Math.round(h * dots);
  c.getContext('2d').setTransform(dots, 0, 0, dots, 0, 0);
}

function resize() {
  width = scroller.clientWidth;
  size(axis, width, AXIS);
  visible = Math.min(scroller.clientHeight, total);
  size(canvas, width, visible);
  ask();
}

// ---- How it looks ----

let ink, hatch;
function colours() {
  const style = getComputedStyle(document.documentElement);
  ink = (name) => (ink[name] ??= style.getPropertyValue(`--${name}`).trim());
  const tile = document.createElement('canvas');
  tile.width = tile.height = 6;
  const g = tile.getContext('2d');
  g.fillStyle = ink('wait');
  g.fillRect(0, 0, 6, 6);
  g.strokeStyle = ink('hatch');
  g.lineWidth = 1.5;
  for (const d of [-6, 0, 6]) {
    g.beginPath();
    g.moveTo(d - 1, 7);
    g.lineTo(d + 7, -1);
    g.stroke();
  }
  hatch = canvas.getContext('2d').createPattern(tile, 'repeat');
}

const family = (name) => data.names[name][1];
const colour = (name) => ink(data.families[family(name)][0]);

// Slices of a track. Those narrower than a pixel share it: what they cover of it is how strong it is.
function paint(g, t, y, h, wait) {
  const s = scale(), last = GUTTER + plot();
  let column = -1, cover = 0, most = 0, name = 0;
  const flush = () => {
    if (column < 0) return;
    g.globalAlpha = Math.min(1, Math.max(cover, 0.2));
    g.fillStyle = wait ? ink('w') : colour(name);
    g.fillRect(column, y, 1, h);
    g.globalAlpha = 1;
    column = -1;
  };
  for (let i = first(t, view.from); i < t.n && t.from[i] < view.to; i++) {
    const a = Math.max(x(t.from[i]), GUTTER), b = Math.min(x(t.to[i]), last);
    if (b - a < 1) {
      const c = Math.min(Math.floor(a), last - 1), w = (t.to[i] - t.from[i]) * s;
      if (c !== column) { flush(); column = c; cover = most = 0; }
      cover += w;
      if (w >= most) { most = w; name = t.name[i]; }
      continue;
    }
    flush();
    g.fillStyle = wait ? (h >= 5 && b - a >= 3 ? hatch : ink('w')) : colour(t.name[i]);
    g.fillRect(a, y, b - a > 4 && !wait ? b - a - 1 : b - a, h);
  }
  flush();
}

// Names of tasks, where there is room for them after the wait that they begin with.
function labels(g, tasks, waits, y, h) {
  if (h < 12) return;
  g.font = '10px system-ui, sans-serif';
  g.textBaseline = 'middle';
  g.textAlign = 'left';
  g.fillStyle = '#fff';
  for (let i = first(tasks, view.from); i < tasks.n && tasks.from[i] < view.to; i++) {
    if (x(tasks.to[i]) - x(tasks.from[i]) < 46) continue;
    const from = Math.max(tasks.from[i], view.from), w = first(waits, from);
    const begun = w < waits.n && waits.from[w] <= from ? waits.to[w] : from;
    const next = w < waits.n ? first(waits, begun) : waits.n;
    const end = Math.min(tasks.to[i], next < waits.n ? Math.max(waits.from[next], begun) : Infinity);
    const left = x(begun) + 5, fits = Math.floor((Math.min(x(end), GUTTER + plot()) - left - 4) / 5.4);
    if (fits < 6) continue;
    const name = data.names[tasks.name[i]][0];
    g.fillText(name.length > fits ? `${name.slice(0, fits - 1)}…` : name, left, y + h / 2 + 0.5);
  }
}

// How many of a rank's compute lanes work, by pixel, and on top of them how many wait.
function density(g, r, y, h) {
  const n = Math.ceil(plot()), s = scale();
  const sums = [new Float64Array(n + 2), new Float64Array(n + 2)];
  const add = (sum, t) => {
    for (let i = first(t, view.from); i < t.n && t.from[i] < view.to; i++) {
      const a = Math.max((t.from[i] - view.from) * s, 0), b = Math.min((t.to[i] - view.from) * s, n);
      // The slope of the integral: exact coverage of each pixel after one running sum.
      ramp(sum, a, 1);
      ramp(sum, b, -1);
    }
  };
  for (const l of r.lanes) {
    add(sums[0], l.compute.tasks);
    add(sums[1], l.compute.waits);
  }
  const all = Math.max(r.lanes.filter((l) => l.compute.tasks.n + l.compute.waits.n > 0).length, 1);
  g.fillStyle = ink('bed');
  g.fillRect(GUTTER, y, plot(), h);
  let tasks = 0, waits = 0;
  for (let i = 0; i < n; i++) {
    tasks += sums[0][i];
    waits += sums[1][i];
    const busy = Math.max(tasks - waits, 0) / all * h, red = Math.min(waits, all) / all * h;
    g.fillStyle = ink('busy');
    g.fillRect(GUTTER + i, y + h - busy, 1, busy);
    g.fillStyle = ink('w');
    g.fillRect(GUTTER + i, y + h - busy - red, 1, red);
  }
}

function ramp(sum, px, sign) {
  const i = Math.floor(px), part = px - i;
  sum[i] += sign * (1 - part);
  sum[i + 1] += sign * part;
}

// ---- Drawing ----

function ask() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => { asked = false; draw(); });
}

function draw() {
  const g = canvas.getContext('2d'), top = scroller.scrollTop;
  const ticks = marks();
  g.clearRect(0, 0, width, visible);
  g.fillStyle = ink('line');
  for (const t of ticks) g.fillRect(Math.round(x(t)), 0, 1, visible);
  drawnRows = 0;
  for (const r of ranks) {
    const y = r.y - top;
    if (y > visible || y + RANK + r.lanes.length * pitch < 0) continue;
    density(g, r, y + 4, RANK - 8);
    if (r.open) r.lanes.forEach((l, i) => lane(g, r, l, y + RANK + i * pitch, i));
  }
  outline(g, top);
  drawAxis(ticks);
  if (pointer && pointer.x >= GUTTER) {
    g.fillStyle = ink('faint');
    g.fillRect(pointer.x, 0, 1, visible);
  }
}

function lane(g, r, l, y, i) {
  if (y > visible || y + pitch < 0) return;
  drawnRows++;
  g.fillStyle = ink('bed');
  g.fillRect(GUTTER, y, plot(), height.compute + height.comm);
  paint(g, l.compute.tasks, y, height.compute, false);
  paint(g, l.compute.waits, y, height.compute, true);
  labels(g, l.compute.tasks, l.compute.waits, y, height.compute);
  paint(g, l.comm.tasks, y + height.compute, height.comm, false);
  paint(g, l.comm.waits, y + height.compute, height.comm, true);
  const every = Math.ceil(11 / pitch);
  if (i % every) return;
  g.fillStyle = ink('faint');
  g.font = '10px system-ui, sans-serif';
  g.textAlign = 'right';
  g.textBaseline = 'middle';
  g.fillText(`lane ${l.lane}`, GUTTER - 10, y + height.compute / 2 + 1);
}

// Round moments in view, about one in a hundred pixels.
function marks() {
  const rough = (view.to - view.from) / Math.max(plot() / 100, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const list = [];
  for (let i = Math.ceil(view.from / step); i * step <= view.to * (1 + 1e-12); i++) list.push(i * step);
  list.step = step;
  return list;
}

function drawAxis(ticks) {
  const g = axis.getContext('2d');
  g.clearRect(0, 0, width, AXIS);
  g.font = '11px system-ui, sans-serif';
  g.textAlign = 'center';
  g.textBaseline = 'alphabetic';
  g.fillStyle = ink('soft');
  const digits = Math.min(Math.max(-Math.floor(Math.log10(ticks.step / 1e6)), 0), 6);
  const shown = pointer && pointer.x >= GUTTER ? pointer.x : null;
  for (const t of ticks) {
    if (shown === null || Math.abs(x(t) - shown) > 62) g.fillText((t / 1e6).toFixed(digits), x(t), AXIS - 8);
  }
  g.textAlign = 'left';
  g.fillText('us', 4, AXIS - 8);
  if (shown === null) return;
  g.textAlign = 'center';
  g.fillStyle = ink('ink');
  g.fillText(us(at(shown)), Math.min(shown, width - 40), AXIS - 8);
}

function outline(g, top) {
  if (!hovered) return;
  const { track: t, i, y, h } = hovered;
  const a = Math.max(x(t.from[i]), GUTTER), b = Math.min(x(t.to[i]), GUTTER + plot());
  if (b < a) return;
  g.strokeStyle = ink('mark');
  g.lineWidth = 1.5;
  g.strokeRect(a, y - top, Math.max(b - a, 2), h);
}

// ---- What is under the pointer ----

const us = (ps) => { const v = ps / 1e6; return `${v.toFixed(Math.abs(v) < 10 ? 3 : 2)} us`; };

// The row at a height of the content.
function row(y) {
  for (const r of ranks) {
    const i = Math.floor((y - r.y - RANK) / pitch);
    if (!r.open || i < 0 || i >= r.lanes.length) continue;
    const top = r.y + RANK + i * pitch, below = y - top - height.compute;
    if (below >= height.comm + 1) return null;
    const comm = below >= 0 && hasComm, l = r.lanes[i];
    return { rank: r.rank, lane: l.lane, comm, stream: comm ? l.comm : l.compute, y: top + (comm ? height.compute : 0), h: comm ? height.comm : height.compute };
  }
  return null;
}

// The slice at a moment, or one that is at most two pixels away.
function pick(t, ps) {
  const near = 2 / scale();
  for (let i = first(t, ps - near), best = -1; ; i++) {
    if (i >= t.n || t.from[i] > ps + near) return best;
    if (t.to[i] < ps - near) continue;
    if (t.from[i] <= ps && ps < t.to[i]) return i;
    if (best < 0) best = i;
  }
}

function hover() {
  hovered = null;
  tip.hidden = true;
  const found = pointer && pointer.x >= GUTTER && row(pointer.y + scroller.scrollTop);
  if (!found) return;
  const { tasks, waits } = found.stream, ps = at(pointer.x);
  const task = pick(tasks, ps), wait = pick(waits, ps);
  if (task < 0 && wait < 0) return;
  const [track, i] = task < 0 ? [waits, wait] : [tasks, task];
  hovered = { ...found, track, i };
  describe(found, track, i, waits, wait);
}

function describe(found, t, i, waits, wait) {
  const line = (tag, text) => {
    const e = document.createElement(tag);
    e.textContent = text;
    return e;
  };
  const where = `rank ${found.rank}, lane ${found.lane}, ${found.comm ? 'comm' : 'compute'}`;
  const lines = [
    line('b', data.names[t.name[i]][0]),
    line('div', t.task[i] < 0 ? where : `${where}, task ${t.task[i]}`),
    line('div', `starts at ${us(t.from[i])}, takes ${us(t.to[i] - t.from[i])}`),
  ];
  const own = t === waits ? null : waitsIn(waits, t.from[i], t.to[i]);
  if (own && own.number > 0) {
    const times = own.number === 1 ? 'once' : `${own.number} times`;
    lines.push(line('div', `waits ${us(own.ps)} of it for signals, ${times}`));
  }
  if (wait >= 0) {
    // A wait is named after its task, unless the trace knows better.
    const name = data.names[waits.name[wait]][0], task = data.names[t.name[i]][0];
    const more = t === waits || name === `wait: ${task}` ? '' : `, ${name}`;
    lines.push(line('em', `here it waits from ${us(waits.from[wait])} on, for ${us(waits.to[wait] - waits.from[wait])}${more}`));
  }
  tip.replaceChildren(...lines);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(pointer.pageX + 16, window.innerWidth - box.width - 8);
  const below = pointer.pageY + 18;
  tip.style.left = `${Math.max(left, 8)}px`;
  tip.style.top = `${below + box.height > window.innerHeight ? pointer.pageY - box.height - 12 : below}px`;
}

// Waits between two moments. Where they overlap, a moment counts once.
function waitsIn(t, from, to) {
  let number = 0, ps = 0, reached = from;
  for (let i = first(t, from); i < t.n && t.from[i] < to; i++) {
    number++;
    ps += Math.max(Math.min(t.to[i], to) - Math.max(t.from[i], reached), 0);
    reached = Math.max(reached, t.to[i]);
  }
  return { number, ps };
}

// ---- Moving ----

// Shows `span` picoseconds from `from` on, as far as there is a run.
function show(from, span) {
  span = Math.min(Math.max(span, Math.min(LEAST_PS, run)), run);
  view.from = Math.min(Math.max(from, 0), run - span);
  view.to = view.from + span;
  hover();
  ask();
}

function zoom(factor, px) {
  const fixed = at(Math.max(px, GUTTER)), part = (fixed - view.from) / (view.to - view.from);
  const span = Math.min(Math.max((view.to - view.from) * factor, LEAST_PS), run);
  show(fixed - part * span, span);
}

const pan = (px) => show(view.from + px / scale(), view.to - view.from);
const middle = () => GUTTER + plot() / 2;

canvas.addEventListener('wheel', (e) => {
  // Over the names of lanes, the wheel scrolls.
  if (e.offsetX < GUTTER) return;
  e.preventDefault();
  const lines = e.deltaMode === 0 ? 1 : 16;
  const sideways = e.shiftKey ? e.deltaY || e.deltaX : e.deltaX;
  if (Math.abs(sideways) > Math.abs(e.deltaY) || e.shiftKey) pan(sideways * lines);
  else zoom(Math.exp(Math.min(Math.max(e.deltaY * lines, -200), 200) * 0.002), e.offsetX);
}, { passive: false });

let drag = null;
canvas.addEventListener('pointerdown', (e) => {
  if (e.button !== 0) return;
  drag = { x: e.clientX, y: e.clientY };
  canvas.setPointerCapture?.(e.pointerId);
  canvas.classList.add('drag');
});
canvas.addEventListener('pointermove', (e) => {
  if (drag) {
    scroller.scrollTop -= e.clientY - drag.y;
    const moved = e.clientX - drag.x;
    drag = { x: e.clientX, y: e.clientY };
    if (moved) pan(-moved);
  }
  const box = canvas.getBoundingClientRect();
  pointer = { x: e.clientX - box.left, y: e.clientY - box.top, pageX: e.clientX, pageY: e.clientY };
  hover();
  ask();
});
for (const end of ['pointerup', 'pointercancel']) canvas.addEventListener(end, () => { drag = null; canvas.classList.remove('drag'); });
canvas.addEventListener('pointerleave', () => { pointer = null; hover(); ask(); });
canvas.addEventListener('dblclick', () => show(0, run));
scroller.addEventListener('scroll', () => { hover(); ask(); });
scroller.addEventListener('keydown', (e) => {
  const act = {
    ArrowLeft: () => pan(-plot() / 8), ArrowRight: () => pan(plot() / 8),
    '+': () => zoom(0.7, middle()), '=': () => zoom(0.7, middle()), '-': () => zoom(1 / 0.7, middle()),
    0: () => show(0, run),
  }[e.key];
  if (!act || e.ctrlKey || e.metaKey || e.altKey) return;
  e.preventDefault();
  act();
});

// ---- Around it ----

for (const r of ranks) {
  r.button = document.createElement('button');
  r.button.type = 'button';
  r.arrow = document.createElement('span');
  const name = document.createElement('b');
  name.textContent = ` rank ${r.rank} `;
  r.button.title = `exposed communication of rank ${r.rank}: ${r.exposed}; the strip shows how many of its lanes work and wait`;
  r.button.append(r.arrow, name, r.exposed);
  r.button.addEventListener('click', () => { r.open = !r.open; place(); });
  $('ranks').append(r.button);
}
$('fold').addEventListener('click', () => {
  const open = !ranks.some((r) => r.open);
  for (const r of ranks) r.open = open;
  place();
});
for (const [name, text] of data.families) {
  const entry = document.createElement('span');
  entry.textContent = text;
  entry.className = name;
  entry.style.setProperty('--colour', `var(--${name})`);
  $('legend').append(entry);
}
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { colours(); ask(); });
// The window, and what is above: the table of ranks unfolds.
new ResizeObserver(resize).observe(scroller);
// A page in the background gets no frames, and so no observation; by then the layout is final all the same.
window.addEventListener('load', resize);

// For those who drive this page by a script.
window.timeline = { state: () => ({ rows: drawnRows, from_us: view.from / 1e6, to_us: view.to / 1e6 }) };
colours();
place();
})();
