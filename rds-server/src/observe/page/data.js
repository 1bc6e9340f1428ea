// What the daemon said, and how it is written down.

/** The value at a dotted path, e.g. `nodes.0.peers.1.address`; undefined where there is none. The last name may have dots of its own. */
export function at(status, path) {
  let [value, rest] = [status, path];
  while (value !== null && typeof value === "object") {
    if (Object.hasOwn(value, rest)) return value[rest];
    const dot = rest.indexOf(".");
    if (dot < 0 || !Object.hasOwn(value, rest.slice(0, dot))) return undefined;
    [value, rest] = [value[rest.slice(0, dot)], rest.slice(dot + 1)];
  }
  return undefined;
}

/** A status as it came. Whole numbers that JavaScript's would round, such as sequence numbers, become BigInt. */
export function parse(json) {
  return JSON.parse(json, (key, value, context) =>
    typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value);
}

/** A value as `data-value` has it: strings as they are, all else as JSON. */
export const raw = (value) => (typeof value === "string" ? value : typeof value === "bigint" ? String(value) : JSON.stringify(value));

export const NONE = "–";

// ---- numbers

const group = (digits) => digits.replace(/\B(?=(\d{3})+$)/g, "\u202f");

/** Every digit. */
export function count(n) {
  if (typeof n !== "bigint" && !Number.isFinite(n)) return NONE;
  return typeof n === "bigint" || Number.isInteger(n) ? group(String(n)) : String(n);
}

function scaled(n, base, units) {
  let i = 0;
  while (Math.abs(n) >= base * 0.9995 && i < units.length - 1) {
    n /= base;
    i += 1;
  }
  const digits = i === 0 ? (Math.abs(n) >= 10 || Number.isInteger(n) ? 0 : 1) : n >= 100 ? 0 : n >= 10 ? 1 : 2;
  return `${n.toFixed(digits)}${units[i]}`;
}

const number = (format) => (n) => (typeof n === "bigint" ? format(Number(n)) : Number.isFinite(n) ? format(n) : NONE);

/** 12.3 k. */
export const short = number((n) => scaled(n, 1000, ["", "\u2009k", "\u2009M", "\u2009G", "\u2009T"]));
export const bytes = number((n) => scaled(n, 1024, ["\u2009B", "\u2009KiB", "\u2009MiB", "\u2009GiB", "\u2009TiB"]));
export const percent = number((n) => `${n < 0.1 && n > 0 ? (n * 100).toFixed(1) : Math.round(n * 100)}\u2009%`);
/** Microseconds. */
export const micros = number((n) =>
  n < 1000 ? `${Math.round(n)}\u2009µs` : n < 1e6 ? `${(n / 1000).toFixed(n < 1e4 ? 2 : 1)}\u2009ms` : `${(n / 1e6).toFixed(2)}\u2009s`);
/** Milliseconds, as a person says how long something has been. */
export const span = number((ms) => {
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s}\u2009s`;
  const [m, h, d] = [Math.floor(s / 60), Math.floor(s / 3600), Math.floor(s / 86400)];
  if (m < 60) return s % 60 ? `${m}\u2009min ${s % 60}\u2009s` : `${m}\u2009min`;
  if (h < 24) return `${h}\u2009h ${m % 60}\u2009min`;
  return `${d}\u2009d ${h % 24}\u2009h`;
});
/** Milliseconds since 1970, as this machine's clock shows them. */
export const clock = number((ms) => {
  if (ms === 0) return NONE;
  const d = new Date(ms);
  const two = (n) => String(n).padStart(2, "0");
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
});
/** What others wrote, on one line and in the order in which it was written: controls, marks of direction and the like as numbers. */
export const tame = (value) => String(value).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
export const text = (value) => (value === null || value === undefined || value === "" ? NONE : tame(value));
export const yes = (value) => (value === true ? "yes" : value === false ? "no" : NONE);

/** One or many of something. */
export const many = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

// ---- names for people

export const GUARANTEE = {
  application: ["its node", "A delivered message was accepted by the peer's node."],
  transport: ["its TCP", "A delivered message was accepted by the peer's TCP only: one that the peer's kernel drops later is lost unnoticed."],
};

export const REASON = {
  setting: "the mode says so",
  local_peer: "the peer is on this host: the kernel would copy all the same",
  not_announced: "the peer did not announce the sending pattern that mapping needs",
  probing: "too little is known yet: it is being measured",
  copied: "the kernel copies what is pinned",
  unmapped: "too many messages could not be mapped whole",
  measured: "measured CPU time decides, for each size",
};

export const programName = (name) => (name ? tame(name) : "(no name)");

/** An address with a port, as a socket has it. */
export function ofSocket(bound) {
  const text = String(bound);
  const i = text.lastIndexOf(":");
  return [text.slice(0, i).replace(/^\[|\]$/g, ""), text.slice(i + 1)];
}

// ---- what happened between two statuses

const SECONDS = 300;

/** Statuses of the last five minutes, as far as charts, rates and the verdict need them. */
export class History {
  samples = [];
  marks = [];
  previous = null;
  rates = new Map();

  /** Takes a status; says whether the daemon is another one than before. */
  push(status) {
    const previous = this.previous;
    const anew = previous !== null && (previous.instance !== status.instance || previous.started_ms !== status.started_ms);
    if (anew) this.marks = [];
    this.rates = new Map();
    const dt = previous && !anew ? (status.at_ms - previous.at_ms) / 1000 : 0;
    // The daemon may answer twice with the same.
    if (previous && !anew && dt <= 0) return { anew: false, same: true };
    const sample = { at: status.at_ms, anew, rtt: [] };
    for (const node of status.nodes) {
      const before = dt > 0 ? previous.nodes.find((n) => n.address === node.address) : undefined;
      this.#node(node, before, dt, sample);
    }
    sample.pinned = sum(status.nodes, (n) => n.zero_copy?.pinned_bytes);
    sample.queued = sum(status.nodes, (n) => n.receive_queued);
    sample.sending = sum(status.nodes, (n) => sum(n.sockets, (s) => s.send_queued));
    this.samples.push(sample);
    const old = status.at_ms - SECONDS * 1000;
    while (this.samples.length && this.samples[0].at < old) this.samples.shift();
    const last = this.marks.at(-1);
    if (!last || status.at_ms - last.at >= 10_000) this.marks.push(mark(status));
    while (this.marks.length > 1 && this.marks[0].at < old) this.marks.shift();
    this.previous = status;
    return { anew, same: false };
  }

  #node(node, before, dt, sample) {
    for (const peer of node.peers) {
      const was = before?.peers.find((p) => p.address === peer.address);
      // What an idle lane says of its round trip is old.
      const moved = peer.connections.filter((lane) => rise(lane.next_tx, was?.connections.find((c) => c.lane === lane.lane)?.next_tx) > 0);
      sample.rtt.push(...moved.map((lane) => lane.rtt_us).filter(known));
      if (!was) continue;
      const total = { out: 0, in: 0, bytesOut: null, bytesIn: null };
      for (const lane of peer.connections) {
        const old = was.connections.find((c) => c.lane === lane.lane);
        if (!old) continue;
        const rate = {
          out: rise(lane.next_tx, old.next_tx) / dt,
          in: rise(lane.next_rx, old.next_rx) / dt,
          // Another connection counts from 0 again.
          bytesOut: maybeRate(lane.tcp_bytes_sent, old.tcp_bytes_sent, dt),
          bytesIn: maybeRate(lane.tcp_bytes_received, old.tcp_bytes_received, dt),
        };
        this.rates.set(`${node.address} ${peer.address} ${lane.lane}`, rate);
        total.out += rate.out;
        total.in += rate.in;
        if (rate.bytesOut !== null) total.bytesOut = (total.bytesOut ?? 0) + rate.bytesOut;
        if (rate.bytesIn !== null) total.bytesIn = (total.bytesIn ?? 0) + rate.bytesIn;
      }
      this.rates.set(`${node.address} ${peer.address}`, total);
    }
    if (!before) return;
    const add = (key, ...names) => {
      sample[key] = (sample[key] ?? 0) + sum(names, (name) => rise(node.counters[name], before.counters[name])) / dt;
    };
    add("out", "send_queued");
    add("in", "recv_queued");
    add("bytesOut", "tcp_bytes_sent");
    add("bytesIn", "tcp_bytes_received");
    const [mapped, mappedBefore] = [node.zero_copy?.recv?.mapped_bytes ?? 0, before.zero_copy?.recv?.mapped_bytes ?? 0];
    sample.bytesIn += rise(mapped, mappedBefore) / dt;
    for (const [name, value] of Object.entries(node.counters)) {
      this.rates.set(`${node.address} counter ${name}`, rise(value, before.counters[name]) / dt);
    }
  }

  rate(...names) {
    return this.rates.get(names.join(" "));
  }

  /** By how much something rose in the last minutes that the page has seen: `read` finds it in a mark. */
  recent(read, now) {
    const first = this.marks[0];
    return first ? rise(now, read(first)) : 0;
  }
}

/** What is remembered of a status for longer. */
function mark(status) {
  const nodes = new Map();
  for (const node of status.nodes) {
    const peers = new Map(node.peers.map((p) => [p.address, p.resets]));
    nodes.set(node.address, { counters: node.counters, peers });
  }
  return { at: status.at_ms, nodes, events: status.events ?? {}, suppressed: status.suppressed_log_lines };
}

/** A difference of counters; what was not there before has not risen, and neither has what started anew. */
function rise(now, before) {
  if (!known(now) || !known(before) || !(now > before)) return 0;
  return typeof now === typeof before ? Number(now - before) : Number(BigInt(now) - BigInt(before));
}

const known = (n) => typeof n === "number" || typeof n === "bigint";

const maybeRate = (now, before, dt) => (known(now) && known(before) ? rise(now, before) / dt : null);

export const sum = (list, read) => (list ?? []).reduce((all, item) => all + Number(read(item) ?? 0), 0);
