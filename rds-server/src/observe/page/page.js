// The page: asks the daemon once a second, and shows what it says.

import { GUARANTEE, History, NONE, REASON, bytes, clock, count, micros, ofSocket, parse, percent, programName, short, span, sum, tame, text, yes } from "./data.js";
import { Table, arrange, make, plain, setAttribute, setText, show, showFacts, showRows, value } from "./table.js";
import { Chart } from "./chart.js";
import { headline, judge, peerState, summary, waiting } from "./verdict.js";

const $ = (id) => document.getElementById(id);
const history = new History();
let status = null;

// ---- asking

const EVERY = 1000;
let [paused, asking, failures, timer, cost, failedSince] = [false, false, 0, null, 0, null];

function later(ms) {
  clearTimeout(timer);
  timer = paused ? null : setTimeout(ask, ms);
}

async function ask() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  const began = performance.now();
  try {
    const answer = await fetch("status", { cache: "no-store", signal: AbortSignal.timeout(10_000) });
    if (!answer.ok) throw new Error(`it answers ${answer.status} ${answer.statusText}`);
    const next = parse(await answer.text());
    if (!Array.isArray(next?.nodes)) throw new Error("what it answers is no status");
    [failures, failedSince] = [0, null];
    // Nothing moves while the page is paused, not even by an answer that was under way.
    if (!paused && !history.push(next).same) {
      status = next;
      render();
    }
    setText($("asked"), paused ? "" : `Last asked ${clock(Date.now())}`);
    document.body.classList.remove("stale");
  } catch (error) {
    failures += 1;
    failedSince ??= Date.now();
    lost(error);
  }
  asking = false;
  cost = performance.now() - began;
  // A large status may take a tenth of this browser's time, no more; one that nobody looks at less; a daemon that is away is asked less and less.
  const patience = Math.max(EVERY, cost * 10, document.hidden ? 5000 : 0, failures ? Math.min(30_000, EVERY * 2 ** (failures - 1)) : 0);
  if (failures) setText($("summary"), `Asking again ${paused ? "when you press Go on" : `in ${span(patience)}`}.`);
  later(patience);
}

function lost(error) {
  document.body.classList.add("stale");
  const since = clock(failedSince);
  verdict("bad", "The daemon does not answer", [
    { level: "bad", key: "lost", what: `Since ${since}: ${error.name === "TimeoutError" ? "no answer within 10 s" : error.message}.`, todo: `Is it running? systemctl status rds-server; its log: journalctl -u rds-server.${status ? " What is below is from before." : ""}` },
  ]);
}

// ---- the verdict

const SIGNS = { ok: "✓", warn: "!", bad: "✕", note: "i", unknown: "…" };
const WORDS = { bad: "Wrong", warn: "Attention", note: "Remark" };
const said = new Map();

function verdict(tone, line, found) {
  $("verdict").className = `verdict ${tone}`;
  setText($("mark"), SIGNS[tone]);
  setText($("headline"), line);
  document.title = `${SIGNS[tone]} ${line} – rds-server`;
  const shown = found.slice(0, 12).map((one) => {
    let item = said.get(one.key);
    if (!item) {
      item = make("li", {}, make("b", { class: "tag" }), make("span", { class: "what" }), make("span", { class: "todo" }));
      said.set(one.key, item);
    }
    item.className = one.level;
    setText(item.children[0], WORDS[one.level]);
    setText(item.children[1], one.what);
    setText(item.children[2], one.todo);
    return item;
  });
  if (found.length > shown.length) shown.push(make("li", { class: "note" }, `and ${found.length - shown.length} more`));
  arrange($("findings"), shown);
  const keys = new Set(found.map((one) => one.key));
  for (const key of said.keys()) if (!keys.has(key)) said.delete(key);
}

// ---- charts

const charts = [
  new Chart($("charts"), { title: "Messages a second", format: short, series: [
    { name: "out", read: (s) => s.out }, { name: "in", read: (s) => s.in }] }),
  new Chart($("charts"), { title: "Bytes a second", format: bytes, base: 1024, series: [
    { name: "out", read: (s) => s.bytesOut }, { name: "in", read: (s) => s.bytesIn }] }),
  new Chart($("charts"), { title: "TCP round trip", format: micros, series: [
    { name: "middle", read: (s) => middle(s.rtt) }, { name: "longest", read: (s) => (s.rtt.length ? Math.max(...s.rtt) : null) }] }),
  new Chart($("charts"), { title: "Memory held", format: bytes, base: 1024, series: [
    { name: "pinned", read: (s) => s.pinned }, { name: "received", read: (s) => s.queued }, { name: "sent", read: (s) => s.sending }] }),
];

function middle(numbers) {
  if (numbers.length === 0) return null;
  return [...numbers].sort((a, b) => a - b)[Math.floor((numbers.length - 1) / 2)];
}

// ---- what is in the tables

const V = (path, format, more) => value(status, path, format, more);
const several = () => status.nodes.length > 1;
const nodeColumn = { key: "node", name: "Node", when: several, cell: (it) => V(`${it.at.replace(/(nodes\.\d+).*/, "$1")}.address`, text), sort: (it) => it.node.address };
const pill = (tone) => ({ c: `pill ${tone}` });
const quiet = (t, title) => plain(t, "quiet", title);
const LANE = { up: "ok", down: "bad", connecting: "warn", handshake: "warn" };

/** Where a line may be broken. */
const GAP = plain(" ", "gap");
const pair = (format, out, into) => [quiet("↑\u2009", "out"), plain(format(out)), GAP, quiet("↓\u2009", "in"), plain(format(into))];
const words = (table, path) => V(path, (found) => table[found] ?? text(found));

function peersOf() {
  return status.nodes.flatMap((node, n) => node.peers.map((peer, p) => {
    const state = peerState(peer);
    const rtts = peer.connections.map((lane) => lane.rtt_us).filter((rtt) => typeof rtt === "number");
    const rate = history.rate(node.address, peer.address);
    const best = rtts.length ? peer.connections.findIndex((lane) => lane.rtt_us === Math.min(...rtts)) : -1;
    return { key: `${node.address} ${peer.address}`, name: `peer ${peer.address}`, at: `nodes.${n}.peers.${p}`, node, peer, state, rate, best, waiting: waiting(peer), tone: state.tone === "bad" ? "trouble wrong" : state.tone === "warn" ? "trouble" : undefined };
  }));
}

/** In one word, how payloads go in one direction. */
function way(decisions) {
  const known = decisions.filter(Boolean);
  if (known.length === 0) return NONE;
  const yes = known.filter((one) => one.decision.zero_copy).length;
  return yes === known.length ? "zero copy" : yes === 0 ? "copied" : "mixed";
}

const wait = make("button", { type: "button", id: "expand" }, "Open all");
wait.title = "Show and hide the details of all peers (e)";

const peers = new Table($("peers"), {
  title: "Peers",
  empty: "No peer yet: nothing has been sent, and nobody has connected.",
  more: [wait],
  sort: (it) => it.state.order,
  columns: [
    { key: "address", name: "Peer", cell: (it) => V(`${it.at}.address`, text, { c: "strong" }), sort: (it) => it.peer.address },
    nodeColumn,
    { key: "state", name: "State", cell: (it) => [plain(it.state.word, `pill ${it.state.tone}`), GAP, quiet(age(it.peer))], sort: (it) => it.state.order },
    { key: "kind", name: "Kind", title: "What is at the other end", cell: (it) => V(`${it.at}.kind`, text), sort: (it) => it.peer.kind },
    { key: "guarantee", name: "Delivered to", title: "What a message that counts as delivered has reached", cell: (it) => V(`${it.at}.delivery`, (d) => GUARANTEE[d]?.[0] ?? text(d), { title: GUARANTEE[it.peer.delivery]?.[1] }), sort: (it) => it.peer.delivery },
    { key: "lanes", name: "Lanes", title: "Lanes that are up, of those in use", right: true, cell: (it) => [plain(String(it.state.up)), quiet(" / "), V(`${it.at}.lanes`, count)], sort: (it) => it.peer.lanes },
    { key: "rtt", name: "Round trip", title: "TCP's smoothed round trip, of the fastest lane", right: true, cell: (it) => (it.best < 0 ? quiet(NONE) : V(`${it.at}.connections.${it.best}.rtt_us`, micros)), sort: (it) => (it.best < 0 ? null : it.peer.connections[it.best].rtt_us) },
    { key: "messages", name: "Messages/s", right: true, cell: (it) => pair(short, it.rate?.out, it.rate?.in), sort: (it) => (it.rate ? it.rate.out + it.rate.in : null) },
    { key: "bytes", name: "Bytes/s", right: true, cell: (it) => pair(bytes, it.rate?.bytesOut, it.rate?.bytesIn), sort: (it) => (it.rate ? it.rate.bytesOut + it.rate.bytesIn : null) },
    { key: "queued", name: "Queued", title: "Messages that wait, and those sent and not acknowledged", right: true, when: () => status.nodes.some((node) => node.peers.some((peer) => waiting(peer) !== null)), cell: (it) => plain(count(it.waiting)), sort: (it) => it.waiting },
    { key: "congested", name: "Congested", title: "Ports of the peer that are congested", right: true, cell: (it) => V(`${it.at}.congested_ports`, count, it.peer.congested_ports ? pill("warn") : { c: "quiet" }), sort: (it) => it.peer.congested_ports },
    { key: "zero", name: "Payloads", wide: true, title: "Whether payloads are copied, out and in", cell: (it) => [quiet("↑\u2009", "out"), plain(way(it.peer.connections.map((lane) => lane.zero_copy?.send))), GAP, quiet("↓\u2009", "in"), plain(way(it.peer.connections.map((lane) => lane.zero_copy?.recv)))], sort: (it) => way(it.peer.connections.map((lane) => lane.zero_copy?.send)) },
    { key: "resets", name: "Resets", title: "Connections lost", right: true, cell: (it) => V(`${it.at}.resets`, count), sort: (it) => it.peer.resets },
    { key: "reason", name: "Last reason", title: "Why the last connection ended", cell: (it) => V(`${it.at}.last_reason`, text, { c: it.peer.last_reason ? "reason" : "quiet", title: it.peer.last_reason && tame(it.peer.last_reason) }), sort: (it) => it.peer.last_reason },
  ],
  detail: (it, room) => {
    room.facts ??= make("dl", { class: "facts" });
    const { peer, at } = it;
    showFacts(room.facts, [
      ["Generation", V(`${at}.generation`, text), "The number of its incarnation"],
      ["Connected for", V(`${at}.connected_ms`, span)],
      ["Down for", V(`${at}.down_ms`, span)],
      ["Connects tried", V(`${at}.attempts`, count)],
      ["Delivered means", plain(GUARANTEE[peer.delivery]?.[1] ?? NONE)],
      ["Last reason", V(`${at}.last_reason`, text)],
    ]);
    const lanes = showRows(room, `Lanes of ${peer.address}`, ["Lane", "State", "From", "To", "Round trip", "Messages/s", "Bytes/s", "Bytes so far", "Resent", "Waiting", "Next sent", "Next received"],
      peer.connections.map((lane, c) => laneRow(it, lane, `${at}.connections.${c}`)));
    const ways = peer.connections.flatMap((lane, c) => decisions(lane, `${at}.connections.${c}`));
    const zero = showRows(room, `Zero copy with ${peer.address}`, ["Lane", "Way", "Payloads", "Why", "Mode", "Sizes", "Without a copy"], ways);
    arrange(room, ways.length ? [room.facts, lanes, zero] : [room.facts, lanes]);
  },
});
wait.addEventListener("click", () => peers.openAll());

function age(peer) {
  if (typeof peer.down_ms === "number") return span(peer.down_ms);
  return typeof peer.connected_ms === "number" ? span(peer.connected_ms) : "";
}

function laneRow(it, lane, at) {
  const rate = history.rate(it.node.address, it.peer.address, lane.lane);
  const queued = typeof lane.queued === "number" ? [V(`${at}.queued`, count), quiet(" new, "), V(`${at}.unacknowledged`, count), quiet(" sent")] : quiet(NONE);
  return [
    V(`${at}.lane`, text), V(`${at}.state`, text, pill(LANE[lane.state] ?? "")), V(`${at}.local`, text), V(`${at}.remote`, text),
    [V(`${at}.rtt_us`, micros), quiet(" ± "), V(`${at}.rttvar_us`, micros)],
    pair(short, rate?.out, rate?.in), pair(bytes, rate?.bytesOut, rate?.bytesIn),
    [quiet("↑\u2009", "sent"), V(`${at}.tcp_bytes_sent`, bytes), GAP, quiet("↓\u2009", "received"), V(`${at}.tcp_bytes_received`, bytes)], V(`${at}.tcp_retransmits`, count),
    queued, V(`${at}.next_tx`, count), V(`${at}.next_rx`, count),
  ];
}

/** What each direction of a lane does with payloads, and why. */
function decisions(lane, at) {
  return ["send", "recv"].filter((way) => lane.zero_copy?.[way]).map((way) => {
    const path = `${at}.zero_copy.${way}`;
    const sizes = lane.zero_copy[way].decision.sizes.flatMap((size, i) => [
      ...(i ? [quiet(", ")] : []),
      V(`${path}.decision.sizes.${i}.from`, (n) => `from ${bytes(n)} `), V(`${path}.decision.sizes.${i}.zero_copy`, (on) => (on ? "zero copy" : "copied")),
    ]);
    return [
      V(`${at}.lane`, text), plain(way === "send" ? "out" : "in"),
      V(`${path}.decision.zero_copy`, (on) => (on ? "zero copy" : "copied"), pill(lane.zero_copy[way].decision.zero_copy ? "ok" : "")),
      words(REASON, `${path}.decision.reason`), V(`${path}.decision.mode`, text),
      sizes.length ? sizes : quiet(NONE), V(`${path}.bytes`, bytes),
    ];
  });
}

// ---- programs

/** Each program once, though every node lists it. */
function clientsOf() {
  const found = new Map();
  status.nodes.forEach((node, n) => (node.clients ?? []).forEach((client, c) => {
    const at = `nodes.${n}.clients.${c}`;
    let it = found.get(client.session);
    if (!it) {
      it = { key: client.session, name: `program ${programName(client.program)}, process ${client.pid}`, at, node, client, sockets: [], tone: client.held?.records > 0 ? "trouble" : undefined };
      found.set(client.session, it);
    }
    client.sockets.forEach((socket, s) => it.sockets.push({ socket, at: `${at}.sockets.${s}` }));
    it.search = it.sockets.map(({ socket }) => socket.bound).join(" ");
  }));
  return [...found.values()];
}

function bar(part, whole, label) {
  return typeof part === "number" && whole > 0 ? [GAP, { bar: part / whole, t: label }] : [];
}

const clients = new Table($("clients"), {
  title: "Programs",
  empty: "No program is attached.",
  sort: (it) => it.client.session,
  columns: [
    { key: "program", name: "Program", cell: (it) => V(`${it.at}.program`, programName, { c: "strong name", title: programName(it.client.program) }), sort: (it) => it.client.program },
    { key: "pid", name: "Process", right: true, cell: (it) => V(`${it.at}.pid`, text), sort: (it) => it.client.pid },
    { key: "uid", name: "User", right: true, title: "User id", cell: (it) => V(`${it.at}.uid`, text), sort: (it) => it.client.uid },
    { key: "session", name: "Session", right: true, cell: (it) => V(`${it.at}.session`, text), sort: (it) => it.client.session },
    { key: "attached", name: "Attached for", right: true, cell: (it) => V(`${it.at}.attached_ms`, span), sort: (it) => it.client.attached_ms },
    { key: "via", name: "Via", title: "How messages get between the program and the daemon", cell: (it) => V(`${it.at}.shared_memory`, (shared) => (shared === true ? "shared memory" : shared === false ? "socket alone" : NONE)), sort: (it) => String(it.client.shared_memory) },
    { key: "sockets", name: "Sockets", right: true, cell: (it) => plain(count(it.sockets.length)), sort: (it) => it.sockets.length },
    { key: "send", name: "Send buffers", right: true, cell: (it) => V(`${it.at}.send_buffers`, bytes), sort: (it) => it.client.send_buffers },
    { key: "receive", name: "Receive buffers", right: true, cell: (it) => V(`${it.at}.receive_buffers`, bytes), sort: (it) => it.client.receive_buffers },
    { key: "arena", name: "Shared memory", right: true, cell: (it) => V(`${it.at}.arena`, bytes), sort: (it) => it.client.arena },
    { key: "pinned", name: "Pinned, of its limit", right: true, cell: (it) => [V(`${it.at}.pinned_bytes`, bytes), quiet(" /"), GAP, V(`${it.at}.pinned_limit`, (limit) => (limit === null ? "no limit" : bytes(limit))), ...bar(it.client.pinned_bytes, it.client.pinned_limit, "of its limit of pinned memory")], sort: (it) => it.client.pinned_bytes },
    { key: "held", name: "Not taken", right: true, title: "Records that had no room in its rings: now, and ever", cell: (it) => [V(`${it.at}.held.records`, count, it.client.held?.records ? pill("warn") : {}), quiet(" now,"), GAP, V(`${it.at}.held.ever`, count), quiet(" ever")], sort: (it) => it.client.held?.records },
  ],
  detail: (it, room) => {
    const sockets = showRows(room, `Sockets of session ${it.client.session}`, ["Bound to", "Sends that wait for congested ports"],
      it.sockets.slice(0, 500).map(({ at }) => [V(`${at}.bound`, text, { c: "strong" }), V(`${at}.waiting`, count)]));
    room.facts ??= make("dl", { class: "facts" });
    showFacts(room.facts, [["Bytes not taken", V(`${it.at}.held.bytes`, bytes)], ["Sockets", plain(count(it.sockets.length))]]);
    arrange(room, it.sockets.length ? [room.facts, sockets] : [room.facts]);
  },
});

// ---- ports

function portsOf() {
  const owners = new Map();
  const all = status.nodes.flatMap((node) => node.clients ?? []);
  for (const client of all) for (const socket of client.sockets) owners.set(socket.bound, (owners.get(socket.bound) ?? new Set()).add(programName(client.program)));
  return status.nodes.flatMap((node, n) => {
    const found = new Map();
    const put = (bound, more) => found.set(bound, { ...(found.get(bound) ?? { key: `${node.address} ${bound}`, node, at: `nodes.${n}`, bound, name: `port ${bound}` }), ...more });
    (node.sockets ?? []).forEach((socket, s) => put(socket.bound, { socket, at: `nodes.${n}.sockets.${s}`, tone: socket.congested ? "trouble" : undefined }));
    (node.ports ?? []).forEach((port, p) => {
      if (found.has(port.bound) || ofSocket(port.bound)[0] === node.address) put(port.bound, { port, portAt: `nodes.${n}.ports.${p}` });
    });
    return [...found.values()].map((it) => ({ ...it, owners: [...(owners.get(it.bound) ?? [])].sort() }));
  });
}

const ofSocketInfo = (key, format) => ({ cell: (it) => (it.socket ? V(`${it.at}.${key}`, format) : quiet(NONE)), sort: (it) => it.socket?.[key] });
const buffer = (used, size) => ({
  cell: (it) => (it.socket ? [V(`${it.at}.${used}`, bytes), quiet(" /"), GAP, V(`${it.at}.${size}`, bytes), ...bar(it.socket[used], it.socket[size], "of its buffer")] : quiet(NONE)),
  sort: (it) => it.socket?.[used],
});

const ports = new Table($("ports"), {
  title: "Ports",
  empty: "No port is bound.",
  sort: (it) => it.bound,
  columns: [
    { key: "bound", name: "Bound to", cell: (it) => V(it.socket ? `${it.at}.bound` : `${it.portAt}.bound`, text, { c: "strong" }), sort: (it) => it.bound },
    nodeColumn,
    { key: "sharing", name: "Sharing", cell: (it) => (it.port ? V(`${it.portAt}.sharing`, text) : quiet(NONE)), sort: (it) => it.port?.sharing },
    { key: "members", name: "Members", right: true, title: "Sockets that share the port", cell: (it) => (it.port ? V(`${it.portAt}.members`, count) : quiet(NONE)), sort: (it) => it.port?.members },
    { key: "programs", name: "Programs", cell: (it) => plain(it.owners.length > 3 ? `${it.owners.slice(0, 3).join(", ")} and ${it.owners.length - 3} more` : it.owners.join(", ") || NONE, "name"), sort: (it) => it.owners[0] },
    { key: "congested", name: "Congested", ...ofSocketInfo("congested", yes), cell: (it) => (it.socket ? V(`${it.at}.congested`, yes, it.socket.congested ? pill("warn") : { c: "quiet" }) : quiet(NONE)) },
    { key: "receiving", name: "Received, not taken", right: true, ...buffer("receive_queued", "receive_buffer") },
    { key: "sending", name: "Sent, not acknowledged", right: true, ...buffer("send_queued", "send_buffer") },
    { key: "pinned", name: "Pinned", right: true, ...ofSocketInfo("pinned_bytes", bytes) },
  ],
});

// ---- memory and zero copy, a row each node

const memory = new Table($("memory"), {
  title: "Memory of the nodes",
  about: "Payloads that leave without a copy are pinned until the kernel has sent them. Where the limit is reached they are copied: slower, otherwise harmless.",
  empty: "No node.",
  columns: [
    { key: "address", name: "Node", cell: (it) => V(`${it.at}.address`, text, { c: "strong" }), sort: (it) => it.node.address },
    { key: "pinned", name: "Pinned, of its limit", right: true, cell: (it) => [V(`${it.at}.zero_copy.pinned_bytes`, bytes), quiet(" /"), GAP, V(`${it.at}.zero_copy.pin_limit`, (limit) => (limit === null ? "no limit" : bytes(limit))), ...bar(it.node.zero_copy?.pinned_bytes, it.node.zero_copy?.pin_limit, "of the limit of pinned memory")], sort: (it) => it.node.zero_copy?.pinned_bytes },
    { key: "most", name: "Most at once", right: true, cell: (it) => V(`${it.at}.zero_copy.pinned_bytes_max`, bytes), sort: (it) => it.node.zero_copy?.pinned_bytes_max },
    { key: "memlock", name: "RLIMIT_MEMLOCK", right: true, cell: (it) => V(`${it.at}.zero_copy.memlock`, (n) => (n === null ? "does not bind" : bytes(n))), sort: (it) => it.node.zero_copy?.memlock },
    { key: "optmem", name: "optmem_max", right: true, cell: (it) => V(`${it.at}.zero_copy.optmem`, bytes), sort: (it) => it.node.zero_copy?.optmem },
    { key: "received", name: "Received, not taken", right: true, cell: (it) => [V(`${it.at}.receive_queued`, bytes), quiet(" /"), GAP, V(`${it.at}.receive_budget`, bytes), ...bar(it.node.receive_queued, it.node.receive_budget, "of the receive budget")], sort: (it) => it.node.receive_queued },
    { key: "mapped", name: "Mapped", right: true, title: "Pages received without a copy, of their limit", cell: (it) => [V(`${it.at}.zero_copy.recv.region_bytes`, bytes), quiet(" /"), GAP, V(`${it.at}.zero_copy.recv.map_limit`, bytes)], sort: (it) => it.node.zero_copy?.recv?.region_bytes },
    { key: "pool", name: "Free buffers", right: true, cell: (it) => V(`${it.at}.zero_copy.pool_bytes`, bytes), sort: (it) => it.node.zero_copy?.pool_bytes },
    { key: "leaked", name: "Leaked calls", right: true, title: "Calls that the kernel never finished", cell: (it) => V(`${it.at}.zero_copy.leaked_calls`, count), sort: (it) => it.node.zero_copy?.leaked_calls },
  ],
});

const FALLBACKS = { budget: "no room in the limit of pinned memory", notifications: "optmem_max full of notifications", refused: "the kernel refused", unpinnable: "memory that cannot be pinned" };

const zerocopy = new Table($("zerocopy"), {
  title: "Zero copy",
  about: "Each lane decides for itself, in each direction, and says why.",
  empty: "No lane has carried a payload yet.",
  sort: (it) => it.name,
  columns: [
    { key: "peer", name: "Peer", cell: (it) => V(`${it.peerAt}.address`, text, { c: "strong" }), sort: (it) => it.peer.address },
    nodeColumn,
    { key: "lane", name: "Lane", right: true, cell: (it) => V(`${it.laneAt}.lane`, text), sort: (it) => it.lane.lane },
    { key: "way", name: "Way", cell: (it) => plain(it.way === "send" ? "out" : "in"), sort: (it) => it.way },
    { key: "does", name: "Payloads", cell: (it) => V(`${it.at}.decision.zero_copy`, (on) => (on ? "zero copy" : "copied"), pill(it.info.decision.zero_copy ? "ok" : "")), sort: (it) => Number(it.info.decision.zero_copy) },
    { key: "why", name: "Why", cell: (it) => words(REASON, `${it.at}.decision.reason`), sort: (it) => it.info.decision.reason },
    { key: "mode", name: "Mode", cell: (it) => V(`${it.at}.decision.mode`, text), sort: (it) => it.info.decision.mode },
    { key: "bytes", name: "Without a copy", right: true, cell: (it) => V(`${it.at}.bytes`, bytes), sort: (it) => it.info.bytes },
    { key: "calls", name: "Calls", right: true, cell: (it) => V(`${it.at}.calls`, count), sort: (it) => it.info.calls },
    { key: "failed", name: "In vain", right: true, title: "Recent share of what was pinned and copied all the same, or could not be mapped", cell: (it) => V(`${it.at}.decision.failed_share`, percent), sort: (it) => it.info.decision.failed_share },
    { key: "pages", name: "Pages", right: true, title: "Pages pinned, or lent, now", cell: (it) => V(`${it.at}.${it.way === "send" ? "pinned_pages" : "lent_pages"}`, count), sort: (it) => it.info.pinned_pages ?? it.info.lent_pages },
    { key: "fallbacks", name: "Copied for want of room", cell: fallbacks, sort: (it) => sum(Object.values(it.info.fallbacks ?? {}), Number) },
  ],
});

function fallbacks(it) {
  const found = Object.entries(it.info.fallbacks ?? {}).filter(([, n]) => n > 0);
  if (found.length === 0) return quiet(NONE);
  return found.flatMap(([name], i) => [...(i ? [quiet(", ")] : []), V(`${it.at}.fallbacks.${name}`, count), plain(` ${FALLBACKS[name] ?? name}`, "soft")]);
}

function waysOf() {
  return status.nodes.flatMap((node, n) => node.peers.flatMap((peer, p) => peer.connections.flatMap((lane, c) => {
    const [peerAt, laneAt] = [`nodes.${n}.peers.${p}`, `nodes.${n}.peers.${p}.connections.${c}`];
    return ["send", "recv"].filter((way) => lane.zero_copy?.[way]).map((way) =>
      ({ key: `${node.address} ${peer.address} ${lane.lane} ${way}`, name: `${peer.address} ${lane.lane} ${way === "send" ? 0 : 1}`, node, peer, lane, way, info: lane.zero_copy[way], peerAt, laneAt, at: `${laneAt}.zero_copy.${way}` }));
  })));
}

// ---- counters and events

const zeros = make("input", { type: "checkbox", id: "zeros" });
const changed = (n) => (n > 0 ? `+${count(n)}` : NONE);

const counters = new Table($("counters"), {
  title: "Counters",
  empty: "All counters are zero.",
  more: [make("label", { class: "check" }, zeros, "zeros, too")],
  columns: [
    { key: "name", name: "Counter", cell: (it) => plain(it.name, "mono"), sort: (it) => it.name },
    nodeColumn,
    { key: "value", name: "Since the start", right: true, cell: (it) => V(it.at, count), sort: (it) => it.value },
    { key: "rate", name: "A second", right: true, cell: (it) => plain(short(it.rate)), sort: (it) => it.rate },
    { key: "recent", name: "Last minutes", right: true, title: "Since this page was opened, or in the last 5 minutes", cell: (it) => plain(changed(it.recent)), sort: (it) => it.recent },
  ],
});
zeros.addEventListener("change", () => render());

function countersOf() {
  return status.nodes.flatMap((node, n) => Object.entries(node.counters).filter(([, found]) => zeros.checked || found > 0).map(([name, found]) => ({
    key: `${node.address} ${name}`, name, node, value: found, at: `nodes.${n}.counters.${name}`,
    rate: history.rate(node.address, "counter", name), recent: history.recent((mark) => mark.nodes.get(node.address)?.counters[name], found),
  })));
}

const events = new Table($("events"), {
  title: "Events",
  about: "What the daemon has noted in its log, by kind. The log has the words: journalctl -u rds-server.",
  empty: "Nothing has happened yet that the log would mention.",
  columns: [
    { key: "name", name: "Event", cell: (it) => plain(it.name, "mono"), sort: (it) => it.name },
    { key: "value", name: "Since the start", right: true, cell: (it) => V(it.at, count), sort: (it) => it.value },
    { key: "recent", name: "Last minutes", right: true, title: "Since this page was opened, or in the last 5 minutes", cell: (it) => plain(changed(it.recent)), sort: (it) => it.recent },
  ],
});

function eventsOf() {
  return Object.entries(status.events ?? {}).filter(([, n]) => n > 0).map(([name, n]) =>
    // What had not happened when the page was opened has happened since.
    ({ key: name, name, at: `events.${name}`, value: n, recent: history.recent((mark) => mark.events[name] ?? 0, n) }));
}

// ---- the daemon itself

function daemon() {
  if (!$("daemon").facts) {
    const title = make("h2", { id: "daemon-title", tabindex: "-1" }, "Daemon");
    $("daemon").setAttribute("aria-labelledby", title.id);
    $("daemon").facts = make("dl", { class: "facts wide" });
    $("daemon").append(make("div", { class: "heading" }, title), $("daemon").facts);
  }
  const facts = [
    ["Version", V("version", text)], ["Process", V("pid", text)], ["State", V("state", text)], ["Sending without a copy", V("zero_copy_send", (mode) => (mode === null ? "as the nodes have it" : text(mode)))], ["Socket for programs", V("socket", text)],
    ["Started", V("started_ms", clock)], ["Up for", V("uptime_ms", span)], ["This status is of", V("at_ms", clock)],
    ["Log lines left out", V("suppressed_log_lines", count), "Lines that somebody could cause at will are limited; this many were not written"],
  ];
  if (status.config) {
    facts.push(["Configuration", V("config.file", (file) => (file === null ? "no file" : tame(file)))], ["Read", V("config.loaded_ms", clock)], ["Reloads", V("config.reloads", count)],
      ["Refused reloads", V("config.failed_reloads", count)], ["Last error of a reload", V("config.last_error", text)]);
  }
  for (const [n, node] of status.nodes.entries()) {
    facts.push([`Generation of ${node.address}`, V(`nodes.${n}.generation`, text), "The number of this incarnation, as the handshake shows it"]);
  }
  showFacts($("daemon").facts, facts);
}

// ---- all together

const SECTIONS = [["peers", peers, peersOf], ["clients", clients, clientsOf], ["ports", ports, portsOf], ["memory", memory, () => status.nodes.map((node, n) => ({ key: node.address, name: `node ${node.address}`, node, at: `nodes.${n}` }))],
  ["zerocopy", zerocopy, waysOf], ["counters", counters, countersOf], ["events", events, eventsOf]];
const TITLES = ["Peers", "Programs", "Ports", "Memory", "Zero copy", "Counters", "Events", "Daemon"];
[...SECTIONS.map(([id]) => id), "daemon"].forEach((id, i) => $("sections").append(make("li", {}, make("a", { href: `#${id}` }, TITLES[i]))));

function render() {
  $("all").hidden = false;
  show($("state"), V("state", text));
  $("state").className = `pill ${{ ready: "ok", failed: "bad" }[status.state] ?? "warn"}`;
  showFacts($("facts"), [
    ["Version", V("version", text)],
    ["Up for", V("uptime_ms", span)],
    [several() ? "Nodes" : "Node", status.nodes.slice(0, 8).flatMap((node, n) => [...(n ? [plain(", ")] : []), V(`nodes.${n}.address`, text)])],
  ]);
  const found = judge(status, history);
  const { tone, line } = headline(found);
  verdict(tone, line, found);
  setText($("summary"), summary(status));
  for (const chart of charts) chart.update(history.samples);
  const filter = $("filter").value.trim().toLowerCase();
  for (const [, table, items] of SECTIONS) table.update(items(), filter);
  daemon();
}

// ---- controls

function pause() {
  paused = !paused;
  setAttribute($("pause"), "aria-pressed", String(paused));
  setText($("pause"), paused ? "Go on" : "Pause");
  setText($("asked"), paused ? `Paused at ${clock(Date.now())}` : "");
  document.body.classList.toggle("paused", paused);
  if (paused) clearTimeout(timer);
  else ask();
}

const THEMES = ["auto", "light", "dark"];

function stored() {
  try {
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

function theme(which) {
  setAttribute(document.documentElement, "data-theme", which === "auto" ? undefined : which);
  setText($("theme"), `Theme: ${which}`);
  try {
    localStorage.setItem("theme", which);
  } catch {
    // Then it lasts as long as the page.
  }
}

const nextTheme = () => theme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % THEMES.length]);
theme(THEMES.includes(stored()) ? stored() : "auto");

function go(id) {
  const target = id === "verdict" ? $(id) : $(id).querySelector("h2");
  $(id).scrollIntoView();
  target?.focus({ preventScroll: true });
}

$("pause").addEventListener("click", pause);
$("theme").addEventListener("click", nextTheme);
$("keys").addEventListener("click", () => $("help").showModal());
$("close").addEventListener("click", () => $("help").close());
$("filter").addEventListener("input", () => status && render());
$("sections").addEventListener("click", (event) => {
  const id = event.target.closest("a")?.hash.slice(1);
  if (!id) return;
  event.preventDefault();
  go(id);
});
document.addEventListener("visibilitychange", () => !document.hidden && !paused && ask());
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.matches("input")) {
    if (event.key === "Escape" && event.target === $("filter")) {
      $("filter").value = "";
      $("filter").blur();
      if (status) render();
    }
    if (event.target.type !== "checkbox") return;
  }
  const keys = { "/": () => $("filter").focus(), p: pause, t: nextTheme, e: () => status && peers.openAll(), "?": () => $("help").showModal(), 0: () => go("verdict") };
  const section = [...$("sections").querySelectorAll("a")][Number(event.key) - 1];
  if (section && !$("all").hidden) keys[event.key] = () => go(section.hash.slice(1));
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});

ask();
