// Is all well? What is wrong, and what to do about it.

import { bytes, count, many, ofSocket, span, sum, tame } from "./data.js";

export const isUp = (lane) => lane.state === "up";

/** One word for a peer, its tone, and its order in a list: worst first. */
export function peerState(peer) {
  const up = peer.connections.filter(isUp).length;
  const used = Math.max(peer.lanes ?? 0, 1);
  if (up > 0) {
    const missing = up < used && peer.connections.some((lane) => lane.lane < used && lane.state !== "up");
    return missing ? { word: "partly up", tone: "warn", order: 1, up } : { word: "up", tone: "ok", order: 3, up };
  }
  if (peer.connections.some((lane) => lane.state === "handshake" || lane.state === "connecting")) {
    return { word: "connecting", tone: peer.down_ms > 5000 ? "bad" : "warn", order: peer.down_ms > 5000 ? 0 : 1, up };
  }
  if (typeof peer.down_ms === "number" || peer.attempts > 0 || (typeof peer.generation === "number" && peer.connections.length > 0)) return { word: "down", tone: "bad", order: 0, up };
  return { word: "idle", tone: "", order: 2, up };
}

/** Messages that wait on a peer's lanes, for their first way out or for their acknowledgement; null where the daemon does not say. */
export function waiting(peer) {
  const known = peer.connections.filter((lane) => typeof lane.queued === "number");
  return known.length ? sum(known, (lane) => lane.queued + (lane.unacknowledged ?? 0)) : null;
}

/** What asks for attention, worst first: { level: "bad" | "warn" | "note", key, what, todo }. */
export function judge(status, history) {
  const found = [];
  // What concerns the process is said of each of its nodes.
  const add = (level, key, what, todo) => found.some((one) => one.key === key) || found.push({ level, key, what, todo });
  daemon(status, add);
  for (const node of status.nodes) {
    peers(node, history, add);
    room(node, status, add);
    risen(node, history, add);
  }
  programs(status, add);
  const order = { bad: 0, warn: 1, note: 2 };
  return found.sort((a, b) => order[a.level] - order[b.level]);
}

function daemon(status, add) {
  if (status.state === "failed") {
    add("bad", "failed", "The daemon has failed and serves nobody.", "Its log says why: journalctl -u rds-server. Then: systemctl restart rds-server.");
  } else if (status.state === "draining") {
    add("warn", "draining", "The daemon is being stopped.", "It takes no new programs, and delivers what it has accepted until its deadline (drain). Nothing to do, unless nobody wanted that.");
  } else if (status.state === "starting") {
    add("note", "starting", "The daemon is starting.", "It serves peers once its programs are back, at the latest after some seconds.");
  } else if (status.state !== "ready") {
    add("warn", "state", `The daemon says that it is “${status.state}”.`, "This page does not know that state: load it again, the daemon may be newer.");
  }
  if (status.config?.last_error) {
    add("warn", "reload", `The last reload was refused, the configuration from before is in force: ${tame(status.config.last_error)}`, "Mend the file, try it with rds-server --check-config, then: systemctl reload rds-server.");
  }
}

function peers(node, history, add) {
  for (const peer of node.peers) {
    const state = peerState(peer);
    const name = `${node.address} ${peer.address}`;
    if (state.word === "down" || (state.word === "connecting" && state.tone === "bad")) {
      const never = !peer.connected_ms && !peer.resets && peer.delivery === null;
      const why = peer.last_reason ? `: ${tame(peer.last_reason)}` : "";
      const line = `Peer ${peer.address} ${never ? "cannot be reached" : "is down"}${why}`;
      // A host that has left for good stays in the list, and need not be an alarm for ever.
      if (waiting(peer) === 0) add("warn", `down ${name}`, line, `${cause(peer, node)} Nothing waits for it: if it is meant to be away, all is well.`);
      else add("bad", `down ${name}`, line,
        `${cause(peer, node)} ${never ? `Try rds-ping ${peer.address}; rds-server doctor looks at this side.` : "What programs send to it waits, and goes out when it is back: this side tries again by itself."}`);
    } else if (state.word === "partly up") {
      add("warn", `lanes ${name}`, `Peer ${peer.address} has only ${state.up} of ${peer.lanes} lanes up`, "The rest is being connected. If it stays so: a firewall or a limit of connections on the way. Its lanes say more, below.");
    }
    const resets = history.recent((mark) => mark.nodes.get(node.address)?.peers.get(peer.address), peer.resets);
    if (resets >= 3 && state.tone !== "bad") {
      add("warn", `resets ${name}`, `Peer ${peer.address} loses its connection again and again${peer.last_reason ? `: ${tame(peer.last_reason)}` : ""}`, "Nothing is lost by that, but it costs time. Look at the network between, and at the log of both sides.");
    }
    if (peer.congested_ports > 0) {
      add("warn", `congested ${name}`, `Peer ${peer.address} has ${many(peer.congested_ports, "congested port")}`, "Programs over there read too slowly; what is sent to those ports waits here. Look for the slow program on that host.");
    }
  }
}

/** What a peer that is away needs, as far as the reason tells. */
function cause(peer, node) {
  const reason = peer.last_reason ?? "";
  if (/refused/i.test(reason)) return "Its host answers, but nobody listens there: start rds-server (or the program with that node) on it.";
  if (/time|unreachable|no route/i.test(reason)) return "Its host does not answer: is it up, and does the network or a firewall between let TCP through?";
  return `Look at that host, and at the network between it and ${node.address}.`;
}

function room(node, status, add) {
  for (const socket of node.sockets ?? []) {
    if (!socket.congested) continue;
    const owners = (status.nodes.flatMap((n) => n.clients ?? [])).filter((client) => client.sockets.some((s) => s.bound === socket.bound));
    const who = [...new Set(owners.map((client) => `${client.program ? tame(client.program) : "a program"} (process ${client.pid})`))].slice(0, 3).join(", ");
    add("warn", `port ${socket.bound}`, `Port ${ofSocket(socket.bound)[1]} of ${node.address} is congested: ${who || "its program"} reads too slowly`, "All peers hold back what they send to it. The program must read faster, or ask for a larger receive buffer.");
  }
  const used = node.receive_queued / node.receive_budget;
  if (used >= 0.8) {
    add(used >= 0.95 ? "bad" : "warn", `budget ${node.address}`, `Received messages that nobody has taken fill the budget of ${node.address} (${bytes(node.receive_budget)})`, "When it is full, peers must wait. Find who reads too slowly under Ports; the limit is node.receive-budget.");
  }
  const zero = node.zero_copy;
  if (!zero) return;
  if (zero.leaked_calls > 0) {
    add("warn", `leaked ${node.address}`, `The kernel never finished ${many(zero.leaked_calls, "call")} that had pinned memory`, "That memory is kept until the daemon is started anew. It is a fault of the kernel: please update it.");
  }
  const limit = zero.pin_limit ?? zero.memlock;
  if (limit && zero.pinned_bytes / limit >= 0.9) {
    add("note", `pins ${node.address}`, `Pinned memory of ${node.address} is nearly at its limit (${bytes(limit)})`, "Beyond it payloads are copied, which is slower and otherwise harmless. A higher LimitMEMLOCK= of the service, or a higher pin limit, helps.");
  }
  if (zero.memlock !== null && zero.memlock !== undefined && zero.pin_limit && zero.memlock < zero.pin_limit) {
    add("note", "memlock", `The kernel lets the daemon pin ${bytes(zero.memlock)} only, its setting is ${bytes(zero.pin_limit)}`, "Raise LimitMEMLOCK= of the service (ulimit -l in a shell). rds-server doctor shows how.");
  }
}

/** Counters that ought to stand still. */
const STILL = [
  ["protocol_errors", "bad", "connections were dropped because a peer sent nonsense", "Something that does not speak RDS connects to this node, or a peer is broken. The log names the address."],
  ["recv_drop_bad_checksum", "bad", "headers came with a wrong checksum", "Bytes are damaged on the way: a bad network card, cable or offload. Try without offloads (ethtool -K)."],
  ["conn_refused", "warn", "connections were refused because of a limit or a list", "The log says whose. Limits and lists of peers are in the configuration."],
  ["recv_drop_no_sock", "warn", "messages came for ports that nobody has bound, and were dropped", "A program is missing here, or somebody sends to the wrong port. Ports shows which are bound."],
  ["send_unknown", "warn", "messages have an unknown fate, because their peer was started anew", "Their programs have been told. See which host was restarted."],
  ["peer_restarts", "note", "peers were started anew", "Nothing to do, if somebody meant it."],
];

function risen(node, history, add) {
  for (const [name, level, what, todo] of STILL) {
    const more = history.recent((mark) => mark.nodes.get(node.address)?.counters[name], node.counters[name]);
    if (more > 0) add(level, `${name} ${node.address}`, `Within the last minutes ${what} (${name} of ${node.address})`, todo);
  }
}

function programs(status, add) {
  const seen = new Set();
  for (const client of status.nodes.flatMap((node) => node.clients ?? [])) {
    if (seen.has(client.session)) continue;
    seen.add(client.session);
    if (client.held?.records > 0) {
      add("warn", `held ${client.session}`, `${client.program ? tame(client.program) : "A program"} (process ${client.pid}) does not take what has come for it`, "The daemon keeps it, within the program's receive buffers. The program is slow, stopped or stuck.");
    }
    if (client.pinned_limit && client.pinned_bytes / client.pinned_limit >= 0.95) {
      add("note", `client pins ${client.session}`, `${client.program ? tame(client.program) : "A program"} (process ${client.pid}) pins as much memory as it may (${bytes(client.pinned_limit)})`, "More is copied, which is slower and otherwise harmless. The limit is quotas.pinned-per-client.");
    }
  }
}

/** The headline for what was found, and its tone. */
export function headline(found) {
  const serious = found.filter((one) => one.level !== "note");
  const tone = found.some((one) => one.level === "bad") ? "bad" : serious.length ? "warn" : "ok";
  if (serious.length === 0) return { tone, line: found.length ? "All is well, with a remark" : "All is well" };
  if (serious.length === 1) return { tone, line: tone === "bad" ? "One thing is wrong" : "One thing needs attention" };
  const bad = serious.filter((one) => one.level === "bad").length;
  if (bad === 0) return { tone, line: `${serious.length} things need attention` };
  const rest = serious.length - bad;
  return { tone, line: `${bad === 1 ? "One thing is" : `${bad} things are`} wrong${rest ? `, and ${rest === 1 ? "one needs" : `${rest} need`} attention` : ""}` };
}

/** The state of the whole in one sentence. */
export function summary(status) {
  const all = status.nodes.flatMap((node) => node.peers);
  const up = all.filter((peer) => peerState(peer).up > 0).length;
  const programs = new Set(status.nodes.flatMap((node) => (node.clients ?? []).map((client) => client.session))).size;
  const peers = all.length === 0 ? "no peers yet" : up === all.length ? `${many(up, "peer")} up` : `${count(up)} of ${many(all.length, "peer")} up`;
  const ports = sum(status.nodes, (node) => node.sockets?.length ?? 0);
  return `${many(status.nodes.length, "node")}, ${peers}, ${many(programs, "program")} with ${many(ports, "port")}. Up for ${span(status.uptime_ms)}.`;
}
