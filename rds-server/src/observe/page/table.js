// Elements that are made once and kept: an update changes what differs, so that focus and selection stay where they are.
// All that is shown is text: nothing here reads HTML.

import { at, raw } from "./data.js";

let made = 0;
const fresh = (prefix) => `${prefix}-${(made += 1)}`;

/** An element with attributes and children. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === undefined || value === null || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
  } else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Makes `parent` have exactly these children in this order, moving as few as it can. */
export function arrange(parent, children) {
  const focused = document.activeElement;
  const wanted = new Set(children);
  for (const child of [...parent.childNodes]) if (!wanted.has(child)) child.remove();
  let next = parent.firstChild;
  for (const child of children) {
    if (child === next) next = next.nextSibling;
    else parent.insertBefore(child, next);
  }
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({ preventScroll: true });
}

/**
 * A value of a status, as a part of what is shown: `path` is where it is there. The page's test holds each of these against the status.
 */
export function value(status, path, format, more = {}) {
  const found = at(status, path);
  return { t: format(found), p: found === undefined ? undefined : path, v: found === undefined ? undefined : raw(found), ...more };
}

/** Something that is not a value of a status as it is: computed, or a word between. */
export const plain = (t, c, title) => ({ t, c, title });

/** Shows parts in an element. */
export function show(element, parts) {
  const list = Array.isArray(parts) ? parts : [parts];
  while (element.children.length > list.length) element.lastElementChild.remove();
  while (element.children.length < list.length) element.append(make("span"));
  list.forEach((part, i) => {
    const span = element.children[i];
    setAttribute(span, "class", part.c);
    setAttribute(span, "title", part.title);
    setAttribute(span, "data-path", part.p);
    setAttribute(span, "data-value", part.v);
    if (part.bar === undefined) {
      setAttribute(span, "role", undefined);
      setAttribute(span, "aria-label", undefined);
      setText(span, part.t);
      return;
    }
    if (!span.firstElementChild) span.replaceChildren(make("i"));
    const share = Math.max(0, Math.min(1, part.bar));
    span.firstElementChild.style.width = `${(share * 100).toFixed(1)}%`;
    setAttribute(span, "class", `meter ${share >= 0.95 ? "bad" : share >= 0.8 ? "warn" : ""}`);
    setAttribute(span, "role", "img");
    setAttribute(span, "aria-label", `${Math.round(share * 100)} % ${part.t}`);
  });
}

/** A list of names and values. */
export function showFacts(dl, facts) {
  dl.rows ??= new Map();
  const shown = facts.map(([name, parts, title]) => {
    let row = dl.rows.get(name);
    if (!row) {
      row = make("div", {}, make("dt", {}, name), make("dd"));
      dl.rows.set(name, row);
    }
    setAttribute(row, "title", title);
    show(row.lastElementChild, parts);
    return row;
  });
  arrange(dl, shown);
}

const isNumber = (n) => typeof n === "number" || typeof n === "bigint";
const looks = (column) => [column.right && "right", column.wide && "wide"].filter(Boolean).join(" ") || undefined;

const ROWS = 200;

/**
 * A table with a caption, heads that sort, and rows that may open.
 *
 * Columns: { key, name, title, right, cell(item) -> parts, sort(item) -> number or text }.
 * Items: { key, ... }. `detail(item, element)` fills the room below a row; `more`: elements beside the caption.
 */
export class Table {
  constructor(section, { title, about, columns, detail, empty, sort, more = [] }) {
    Object.assign(this, { columns, detail, empty, initial: sort });
    this.sort = null;
    this.rows = new Map();
    this.open = new Set();
    this.items = [];
    this.filter = "";
    this.limit = ROWS;
    this.heading = make("h2", { id: fresh("title"), tabindex: "-1" }, title);
    this.count = make("span", { class: "count" });
    this.head = make("tr");
    this.body = make("tbody");
    this.table = make("table", { "aria-labelledby": this.heading.id }, make("thead", {}, this.head), this.body);
    this.nothing = make("p", { class: "nothing" });
    this.all = make("button", { type: "button", class: "all", hidden: true });
    this.all.addEventListener("click", () => {
      this.limit = Infinity;
      this.render();
    });
    const heading = make("div", { class: "heading" }, this.heading, this.count, make("span", { class: "grow" }), ...more);
    const scroll = make("div", { class: "scroll" }, this.table);
    section.setAttribute("aria-labelledby", this.heading.id);
    section.append(heading, ...(about ? [make("p", { class: "about" }, about)] : []), scroll, this.nothing, this.all);
    this.heads = columns.map((column) => this.#head(column));
    if (detail) this.head.prepend(make("th", { scope: "col", class: "opener" }, make("span", { class: "unseen" }, "Details")));
  }

  #head(column) {
    const arrow = make("span", { class: "arrow", "aria-hidden": "true" });
    const button = make("button", { type: "button", title: column.title }, column.name, arrow);
    const th = make("th", { scope: "col", class: looks(column) }, button);
    button.addEventListener("click", () => {
      const down = this.sort?.key === column.key ? !this.sort.down : Boolean(column.right);
      this.sort = { key: column.key, down };
      this.render();
    });
    this.head.append(th);
    return { th, arrow, column };
  }

  update(items, filter) {
    this.items = items;
    this.filter = filter;
    this.render();
  }

  /** Opens every row, or closes all where all are open. */
  openAll() {
    const keys = this.items.slice(0, ROWS).map((item) => item.key);
    if (keys.every((key) => this.open.has(key))) this.open.clear();
    else keys.forEach((key) => this.open.add(key));
    this.render();
  }

  render() {
    const columns = this.columns.filter((column) => !column.when || column.when());
    for (const { th, arrow, column } of this.heads) {
      setAttribute(th, "hidden", columns.includes(column) ? undefined : "");
      const sorted = this.sort?.key === column.key ? (this.sort.down ? "descending" : "ascending") : undefined;
      setAttribute(th, "aria-sort", sorted);
      setText(arrow, sorted === "ascending" ? "▲" : sorted === "descending" ? "▼" : "");
    }
    const cells = this.items.map((item) => ({ item, cells: columns.map((column) => [column.cell(item)].flat()) }));
    const shown = this.filter ? cells.filter(({ item, cells }) => this.#matches(item, cells)) : cells;
    this.#sorted(shown);
    const lines = [];
    for (const { item, cells } of shown.slice(0, this.limit)) lines.push(...this.#row(item, cells, columns));
    arrange(this.body, lines);
    const there = new Set(this.items.map((item) => item.key));
    for (const key of this.rows.keys()) {
      if (!there.has(key)) {
        this.rows.delete(key);
        this.open.delete(key);
      }
    }
    setText(this.count, this.filter ? `${shown.length} of ${this.items.length}` : String(this.items.length));
    setAttribute(this.table, "hidden", shown.length ? undefined : "");
    setText(this.nothing, shown.length ? "" : this.items.length ? "None of them has what the filter says." : this.empty);
    setAttribute(this.nothing, "hidden", shown.length ? "" : undefined);
    setAttribute(this.all, "hidden", shown.length > this.limit ? undefined : "");
    setText(this.all, `Show all ${shown.length}: these are the first ${ROWS}`);
  }

  #matches(item, cells) {
    const text = `${cells.map((parts) => parts.map((part) => part.t).join("")).join(" ")} ${item.search ?? ""}`.toLowerCase();
    return this.filter.split(/\s+/).every((word) => text.includes(word));
  }

  #sorted(rows) {
    const column = this.columns.find((column) => column.key === this.sort?.key);
    const by = column ? column.sort : this.initial;
    if (!by) return;
    const turn = column && this.sort.down ? -1 : 1;
    for (const row of rows) row.by = by(row.item) ?? null;
    rows.sort((a, b) => {
      // What has no value comes last, whichever way.
      if (a.by === null || b.by === null) return (a.by === null) - (b.by === null);
      const order = isNumber(a.by) && isNumber(b.by) ? (a.by > b.by) - (a.by < b.by) : String(a.by).localeCompare(String(b.by), "en", { numeric: true });
      return order * turn;
    });
  }

  #row(item, cells, columns) {
    let row = this.rows.get(item.key);
    if (!row || row.columns !== columns.length) {
      row = this.#makeRow(item, columns);
      this.rows.set(item.key, row);
    }
    setAttribute(row.tr, "class", item.tone);
    cells.forEach((parts, i) => show(row.cells[i], parts));
    if (!this.detail) return [row.tr];
    const open = this.open.has(item.key);
    setAttribute(row.opener, "aria-expanded", String(open));
    setAttribute(row.opener, "aria-label", `Details of ${item.name}`);
    if (!open) return [row.tr];
    this.detail(item, row.room);
    return [row.tr, row.below];
  }

  #makeRow(item, columns) {
    const cells = columns.map((column, i) =>
      make(i === 0 ? "th" : "td", { scope: i === 0 ? "row" : undefined, class: looks(column), "data-label": column.name }));
    const tr = make("tr", {}, ...cells);
    const row = { tr, cells, columns: columns.length };
    if (!this.detail) return row;
    row.room = make("div", { class: "room" });
    row.below = make("tr", { class: "below", id: fresh("below") }, make("td", { colspan: columns.length + 1 }, row.room));
    row.opener = make("button", { type: "button", class: "open", "aria-controls": row.below.id });
    row.opener.addEventListener("click", () => {
      if (!this.open.delete(item.key)) this.open.add(item.key);
      this.render();
    });
    tr.prepend(make("td", { class: "opener" }, row.opener));
    return row;
  }
}

/** A table within a row's room: no sorting, few rows. */
export function showRows(room, name, columns, rows) {
  room.tables ??= new Map();
  let table = room.tables.get(name);
  if (!table) {
    const head = make("tr", {}, ...columns.map((column) => make("th", { scope: "col" }, column)));
    table = make("table", { class: "inner", "aria-label": name }, make("thead", {}, head), make("tbody"));
    room.tables.set(name, table);
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.lastElementChild.remove();
  rows.forEach((cells, i) => {
    const tr = body.rows[i] ?? body.appendChild(make("tr"));
    while (tr.cells.length < cells.length) tr.append(make(tr.cells.length ? "td" : "th", { "data-label": columns[tr.cells.length], scope: tr.cells.length ? undefined : "row" }));
    cells.forEach((parts, j) => show(tr.cells[j], parts));
  });
  return table;
}
