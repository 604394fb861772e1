// Elements of the page from the server's figures. Text is always set as text, never read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const number = new Intl.NumberFormat("en");

export const count = (value) => (value === null || value === undefined ? "?" : number.format(value));

export function ago(seconds) { // as in the terminal: two digits or so
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * size) return `${(seconds / size).toFixed(0)} ${unit}`;
  }
  return seconds >= 10 ? `${seconds.toFixed(0)} s` : `${Math.max(seconds, 0).toFixed(1)} s`;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined));
  return element;
}

// An objective, as it was written: 5 s, 15 min.
const goal = (seconds) => (seconds >= 120 || !Number.isInteger(seconds) ? ago(seconds) : `${seconds} s`);

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// Makes `old` look like `next` and touches only what differs: focus, selection and tooltips stay, nothing flickers.
export function morph(old, next) {
  if (old.nodeName !== next.nodeName || old.id !== next.id) return old.replaceWith(next);
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return undefined;
  }
  if (next.dataset.same !== undefined && next.dataset.same === old.dataset.same) return undefined;
  for (const { name } of [...old.attributes]) if (!next.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const [before, after] = [[...old.childNodes], [...next.childNodes]];
  before.slice(after.length).forEach((child) => child.remove());
  after.forEach((child, i) => (i < before.length ? morph(before[i], child) : old.append(child)));
  return undefined;
}

// The same for a list whose children have ids, and may come, go and change places.
export function morphList(list, next) {
  const wanted = new Set(next.map((child) => child.id));
  const focused = document.activeElement;
  for (const child of [...list.children]) if (!wanted.has(child.id)) child.remove();
  const have = new Map([...list.children].map((child) => [child.id, child]));
  let at = list.firstElementChild;
  for (const child of next) {
    const old = have.get(child.id);
    if (old) morph(old, child);
    if (old && old === at) at = at.nextElementSibling;
    else list.insertBefore(old ?? child, at);
  }
  if (focused !== document.activeElement && list.contains(focused)) focused.focus({ preventScroll: true });
}

// "... `command` ..." with the command as code.
const spoken = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));

const numberCell = (value, extra = "") =>
  h("td", { class: `number ${value === 0 ? "zero" : ""} ${extra}`.trim() }, value === null ? "–" : count(value));

export function line(one, opened) {
  const open = one.table === opened;
  return h("tr", { id: `line-${one.table}`, class: open ? "opened" : null },
    h("td", {}, h("button", { class: "name", type: "button", "data-table": one.table, "aria-expanded": String(open) },
      h("span", {}, one.table))),
    h("td", {}, h("span", { class: `state ${one.state}` }, one.state)),
    h("td", { class: `number ${one.tail === 0 ? "zero" : ""}`.trim() }, count(one.tail)),
    numberCell(one.buffer), numberCell(one.stream),
    h("td", { class: one.late ? "number late" : "number" }, ago(one.since_tier_s)),
    numberCell(one.quarantined),
    h("td", { class: "quiet" }, one.busy.join(", ") || "–"));
}

export function details(found, table, picture) {
  const row = (...children) => h("tr", { id: `open-${table}`, class: "details" },
    h("td", { colspan: 8 }, h("section", { "aria-label": `details of ${table}` }, ...children)));
  if (!found) return row(h("p", { class: "quiet" }, "asking the ledger …"));
  if (found.trouble && !found.bars) return row(h("p", { class: "notice bad" }, found.trouble));
  // The same parts in the same places, whatever is in them: what comes and goes moves nothing else.
  return row(
    h("div", {}, ...found.notices.map((one) =>
      h("p", { class: `notice ${one.kind}` }, one.text, one.way ? ["\n", spoken(one.way)] : null))),
    figures(found), h("h2", {}, "Where the records are, in offsets"), bars(found),
    h("div", {}, found.open_moves.length ? [h("h2", {}, "Open moves"), moves(found)] : null),
    h("div", {}, found.claims.length ? [h("h2", {}, "Claims"), claims(found)] : null),
    h("h2", {}, "Layout of the batch view"), picture);
}

function figures(found) {
  const { lag, freshness: goals } = found;
  const box = (name, value, small, over) =>
    h("div", { class: over ? "over" : null }, h("dt", {}, name), h("dd", {}, value, small ? h("small", {}, small) : null));
  const ingestLate = lag.tail > 0 && (found.since_ingest_s ?? found.since_tier_s) > goals.visible_s;
  return h("dl", {},
    box("only in Kafka", count(lag.tail), "offsets", ingestLate),
    box("only in the buffer", count(lag.buffer), "offsets"),
    lag.stream === undefined ? null : box("not in the batch view", count(lag.stream), "offsets"),
    box("newest buffer commit", found.since_ingest_s === null ? "none yet" : ago(found.since_ingest_s),
      `objective: readable in ${goal(goals.visible_s)}`, ingestLate),
    box("last move to the lake", ago(found.since_tier_s), `objective: ${goal(goals.lake_s)}`,
      lag.buffer > 0 && found.since_tier_s > goals.lake_s),
    box(`version ${count(found.version)}`, ago(found.age_s), "old"),
    box("rows in the lake", count(found.lake_rows), found.recalled.rows ? `${count(found.recalled.rows)} recalled` : null),
    box("quarantined", count(found.quarantined), "records", found.quarantined > 0),
    box("reads under way", count(found.readers)));
}

const NAMES = { batch: "batch view", stream: "stream view", lake: "lake", buffer: "buffer", tail: "only in Kafka",
  no_rows: "no rows" };

function bars(found) {
  const tiers = Object.keys(found.bars[0] ?? {}).filter((name) => name !== "partition");
  const total = (one) => tiers.reduce((sum, tier) => sum + (one[tier] ?? 0), 0);
  const scale = Math.max(1, ...found.bars.map(total));
  return h("table", { class: "inner bars" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "partition"), h("th", { class: "wide" }),
      ...tiers.map((tier) => h("th", { scope: "col", class: "number" }, h("span", { class: `key key-${tier}` }, NAMES[tier]))))),
    h("tbody", {}, ...found.bars.map((one) => h("tr", { "data-partition": one.partition },
      h("td", {}, String(one.partition)), h("td", { class: "wide" }, bar(one, tiers, scale)),
      ...tiers.map((tier) => h("td", { class: "number", "data-tier": tier }, count(one[tier])))))));
}

const BAR = 1000, LEAST = 6; // what is not empty is seen

function bar(one, tiers, scale) {
  const widths = tiers.map((tier) => (one[tier] > 0 ? Math.max(LEAST, (one[tier] / scale) * BAR) : 0));
  const over = widths.reduce((sum, width) => sum + width, 0) - BAR;
  if (over > 0) widths[widths.indexOf(Math.max(...widths))] -= over;
  const said = tiers.map((tier) => `${NAMES[tier]} ${count(one[tier])}`).join(", ");
  let x = 0;
  return s("svg", { class: "bar", viewBox: `0 0 ${BAR} 10`, preserveAspectRatio: "none", role: "img",
    "aria-label": `partition ${one.partition}: ${said}` },
  tiers.map((tier, i) => s("rect", { class: `fill-${tier}`, x: (x += i ? widths[i - 1] : 0).toFixed(1), y: 0,
    width: widths[i].toFixed(1), height: 10 })));
}

function records(kind, names, rows) {
  return h("table", { class: `inner ${kind}` },
    h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map(({ quiet, cells }) =>
      h("tr", { class: quiet ? "quiet" : null }, ...cells.map((cell) => h("td", { class: "text" }, cell))))));
}

const short = (holder) => h("code", { title: holder }, holder.slice(0, 8));

function moves(found) {
  const names = ["move", "stage", "state", "open for", "attempt", "failures", "holder", "lease left", "last error, and what comes next"];
  return records("moves", names, found.open_moves.map((one) => {
    const stuck = one.state === "QUARANTINED";
    return { cells: [one.move_id, one.stage, h("span", { class: `state ${stuck ? "stuck" : ""}` }, stuck ? "stuck" : "open"),
      ago(one.age_s), one.attempt, one.failures, one.holder ? short(one.holder) : "nobody", one.holder ? ago(one.left_s) : "–",
      [one.error ? `${one.error}\n` : "", h("span", { class: "quiet" }, spoken(one.coming))]] };
  }));
}

function claims(found) {
  const alive = [...found.claims].sort((a, b) => Number(b.alive) - Number(a.alive));
  return records("claims", ["stage", "shard", "holder", "epoch", "lease left"], alive.map((one) => ({
    quiet: !one.alive,
    cells: [one.stage, one.shard, short(one.holder), one.epoch, one.alive ? ago(one.left_s) : `ended ${ago(-one.left_s)} ago`],
  })));
}

const WIDTH = 1000, HEIGHT = 420, LEFT = 130, RIGHT = 10, TOP = 10, BOTTOM = 56;

// The regions of the tree over the first two indexed columns.
export function layout(found) {
  if (!found || found.none) return h("figure", { id: "picture" }, h("figcaption", {}, spoken(found?.none ?? "asking …")));
  const [across, up] = found.axes;
  const place = (axis, share, from, to) => from + ((share - (axis?.from ?? 0)) / (1 - (axis?.from ?? 0))) * (to - from);
  const x = (share) => place(across, share, LEFT, WIDTH - RIGHT);
  const y = (share) => place(up, share, HEIGHT - BOTTOM, TOP);
  const rectangle = ([x0, y0, x1, y1], attributes, ...children) => s("rect", { ...attributes, x: x(x0).toFixed(1),
    y: y(y1).toFixed(1), width: Math.max(x(x1) - x(x0), 1).toFixed(1), height: Math.max(y(y0) - y(y1), 1).toFixed(1) }, ...children);
  const label = (axis) => axis.name + (axis.by_rank ? " (equal steps hold equally many rows)" : "");
  const { score } = found;
  const said = `${count(found.regions_all)} regions over (${found.columns.join(", ")}) at version ${count(found.version)}: `
    + `${count(found.files)} files, ${found.bytes}, target ${found.target} each; ${(found.staged_share * 100).toFixed(1)} % staged, `
    + `${count(found.due)} parts due to be rewritten`;
  return h("figure", { id: "picture", "data-same": found.key },
    h("p", {}, "Score: point depth ", h("strong", {}, score.point_depth.toFixed(2)), ", probe ratio ",
      h("strong", {}, score.probe_ratio.toFixed(2)), h("span", { class: "quiet" }, " (1 would be perfect for both)")),
    s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": said },
      found.regions.map((one) => rectangle(one.box, { class: "region", "fill-opacity": (0.08 + 0.72 * Math.min(one.filled / 1.5, 1)).toFixed(2) },
        s("title", {}, one.title))),
      found.staged.map((box) => rectangle(box, { class: "outline" })),
      s("rect", { class: "frame", x: LEFT, y: TOP, width: WIDTH - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM }),
      across.ticks.map(([share, text]) => s("text", { x: x(share).toFixed(1), y: HEIGHT - BOTTOM + 18,
        "text-anchor": share < 0.03 ? "start" : share > 0.97 ? "end" : "middle" }, text)),
      s("text", { class: "axis", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 12, "text-anchor": "middle" }, label(across)),
      up ? [up.ticks.map(([share, text]) => s("text", { x: LEFT - 8, y: (y(share) + 4).toFixed(1), "text-anchor": "end" }, text)),
        s("text", { class: "axis", transform: `translate(14 ${(HEIGHT - BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, label(up))] : null),
    h("figcaption", {}, said, found.at.length ? `; a slice at ${found.at.join(", ")} (median)` : "",
      found.staged_files ? `; dashed: ${count(found.staged_files)} files not clustered yet` : "",
      ". The darker a region, the more bytes it has."));
}
