// Asks the server about once a second and shows what it says. What could not be renewed looks old.

import { ago, count, details, h, layout, line, morph, morphList } from "/draw.js";

const POLL_MS = 1000, ANSWER_MS = 6000, OLD_MS = 4000;
const TROUBLE = ["unreadable", "stopped", "refusing", "stuck", "stalled", "retrying", "late"];
const at = (id) => document.getElementById(id);

let seen = null; // the last good answer
let seenAt = 0;
let trouble = "";
let picture = null; // of the open table, which comes only when it changed
let timer = 0;
let asking = 0;

const opened = () => location.hash.slice(1); // names of tables need no escaping

async function ask() {
  clearTimeout(timer);
  const mine = ++asking, table = opened();
  const words = new URLSearchParams(table ? { table } : {});
  if (table && picture?.table === table) words.set("drawn", picture.key);
  try {
    const answer = await fetch(`/api/status?${words}`, { signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
    const found = await answer.json();
    if (mine !== asking) return; // another table was opened meanwhile
    if (answer.status === 401) return location.replace("/login");
    if (answer.ok) take(found, table);
    else trouble = found.trouble ?? found.error?.message ?? "The server of this page met an error.";
  } catch {
    if (mine !== asking) return;
    trouble = "The server of this page does not answer: was it ended?";
  }
  show();
  timer = setTimeout(ask, POLL_MS);
}

function take(found, table) {
  [seen, seenAt, trouble] = [found, Date.now(), ""];
  const part = found.open?.layout;
  if (part && part.key !== picture?.key) picture = { ...part, table };
  if (!table && found.tables.length === 1 && !take.done) history.replaceState(null, "", `#${found.tables[0].table}`);
  take.done = true;
}

function show() {
  pulse();
  if (!seen) return;
  const table = opened(), words = at("filter").value.toLowerCase().trim();
  const rank = (one) => (at("order").value === "name" ? 0 : (TROUBLE.indexOf(one.state) + TROUBLE.length + 1) % (TROUBLE.length + 1));
  const chosen = seen.tables
    .filter((one) => one.table === table || one.table.includes(words) || one.state.includes(words))
    .sort((a, b) => rank(a) - rank(b) || (a.table < b.table ? -1 : 1));
  const current = seen.open?.table === table ? seen.open : null;
  const rows = chosen.flatMap((one) => (one.table === table ? [line(one, table), details(current, table, drawn(table))] : [line(one, table)]));
  morphList(at("rows"), rows);
  at("choice").hidden = seen.tables.length < 2;
  at("tables").hidden = !chosen.length;
  text("none", chosen.length ? "" : seen.tables.length ? "no table matches the filter"
    : "no table yet: `harness table apply FILE` creates one");
  const parts = [`${count(seen.tables.length)} ${seen.tables.length === 1 ? "table" : "tables"}`,
    ...TROUBLE.map((state) => [seen.tables.filter((one) => one.state === state).length, state])
      .filter(([many]) => many).map(([many, state]) => `${count(many)} ${state}`)];
  text("summary", parts.join(" · "));
  at("leave").hidden = !seen.reader;
  text("reader", seen.reader ? `logged in as ${seen.reader}` : "");
  text("warning", seen.kafka ? `What only Kafka has is not known: ${seen.kafka}` : "");
}

// A picture is drawn once: as long as its key is that of the one on the page, an empty one stands for it.
function drawn(table) {
  const mine = picture?.table === table ? picture : null;
  if (mine && !mine.none && at("picture")?.dataset.same === mine.key) return h("figure", { id: "picture", "data-same": mine.key });
  return layout(mine);
}

function pulse() {
  const age = Date.now() - seenAt;
  const old = Boolean(trouble) || (seen !== null && age > OLD_MS);
  document.body.classList.toggle("old", old);
  const clock = seen ? `${new Date(seen.at).toISOString().slice(0, 19).replace("T", " ")} UTC` : "";
  text("pulse", !seen ? "connecting" : old ? `as of ${clock}, ${ago(age / 1000)} ago` : `as of ${clock}`);
  text("alarm", trouble ? `${trouble}${seen ? " The numbers below are old." : ""}` : old ? "No answer; the numbers below are old." : "");
}

function text(id, words) {
  if (at(id).textContent !== words) at(id).textContent = words;
}

function open(table) {
  history.replaceState(null, "", table === opened() ? location.pathname : `#${table}`);
  show();
  ask();
}

at("rows").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-table]");
  if (button) open(button.dataset.table);
});
at("choice").addEventListener("input", show);
at("choice").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", () => { show(); ask(); });
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
setInterval(pulse, 500); // the age grows also while nobody answers
ask();
