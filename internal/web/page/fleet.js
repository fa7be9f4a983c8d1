// The machines of a gateway, asked for again and again while somebody looks. What a machine
// says about itself is the word of whoever runs it, and only ever text here.

import { arrange, button, element, setAttribute, setText } from "./dom.js";
import { duration, printable } from "./format.js";
import { pause } from "./model.js";
import { address, labels } from "./place.js";
import { machines, principal, signOut, SignedOut } from "./signin.js";
import { showState, themeButton } from "./top.js";

const interval = 2000; // milliseconds between two questions, at least

const collator = new Intl.Collator("en", { numeric: true });

export class Fleet {
  #askToSignIn; // a function that says why
  #known = null; // a list of machines, or null before the first
  #rows = new Map(); // by name
  #labels = labels(); // that a machine must have
  #words = []; // that it must have, too
  #ended = false;

  constructor(askToSignIn, problem) {
    this.#askToSignIn = askToSignIn;
    this.connection = element("span", { class: "connection", role: "status" });
    this.filter = element("input", { type: "search", id: "filter", placeholder: "Filter (press /)", "aria-label": "Filter the machines", oninput: () => this.#changeFilter() });
    this.chosen = element("span", { class: "labels", role: "group", "aria-label": "Labels that are chosen" });
    this.count = element("p", { class: "hint", role: "status" });
    this.rows = element("ul", { class: "machines", "aria-label": "Machines" });
    this.rows.addEventListener("keydown", (event) => this.#move(event));
    const notice = element("p", { class: "announced", role: "status" });
    document.body.replaceChildren(
      element("header", { class: "top" },
        element("h1", { text: "Machines" }),
        element("span", { class: "machine", text: [location.host, principal() && "you are " + principal()].filter(Boolean).map(printable).join(" · ") }),
        this.connection,
        element("div", { class: "settings" }, themeButton(), button("Sign out", () => this.#signOut()))),
      notice,
      element("main", { class: "fleet" }, element("div", { class: "bar" }, this.filter, this.chosen, this.count), this.rows));
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || event.target.matches("input")) return;
      this.filter.focus();
      event.preventDefault();
    });
    setText(notice, problem); // now, so that screen readers say it
    this.#become("connecting", "");
  }

  // run asks until the person has signed out.
  async run() {
    while (!this.#ended) {
      const began = performance.now();
      try {
        this.#known = (await machines()).sort((a, b) => collator.compare(a.name, b.name));
        this.#become("connected", "");
        this.#show();
      } catch (error) {
        if (this.#ended) return;
        if (error instanceof SignedOut) return this.#askToSignIn(error.message);
        this.#become("lost", error.message);
      }
      // A gateway that needs long for an answer is asked less often.
      await pause(Math.max(interval, 4 * (performance.now() - began)));
    }
  }

  #become(state, reason) {
    showState(this.connection, state, reason, location.host);
  }

  async #signOut() {
    this.#ended = true;
    try {
      await signOut();
    } finally {
      location.reload();
    }
  }

  #changeFilter() {
    this.#words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    this.#show();
  }

  // toggle makes machines need a label, or no longer.
  #toggle(label) {
    this.#labels = this.#labels.includes(label) ? this.#labels.filter((other) => other !== label) : [...this.#labels, label];
    history.replaceState(null, "", address(null, this.#labels));
    this.#show();
  }

  // A chosen label is KEY=VALUE, or KEY for any value, as in the address /any of the gateway.
  #matches(machine) {
    const own = labelsOf(machine);
    if (!this.#labels.every((want) => (want.includes("=") ? own.includes(want) : own.some((label) => label.startsWith(want + "="))))) return false;
    const text = [machine.name, machine.host, machine.version, machine.system, sandboxOf(machine), stateOf(machine), ...own].join(" ").toLowerCase();
    return this.#words.every((word) => text.includes(word));
  }

  #show() {
    arrange(this.chosen, this.#labels.map((label) => this.#chip(label, label + " ×", "No longer only " + printable(label))));
    if (!this.#known) return;
    const names = new Set(this.#known.map((machine) => machine.name));
    const hadFocus = this.rows.contains(document.activeElement);
    for (const name of this.#rows.keys()) if (!names.has(name)) this.#rows.delete(name);
    const shown = this.#known.filter((machine) => this.#matches(machine));
    arrange(this.rows, shown.map((machine) => this.#row(machine)));
    if (hadFocus && !this.rows.contains(document.activeElement)) this.filter.focus();
    const all = this.#known.length;
    let count = "There is no machine that you may use.";
    if (all > 0) count = (shown.length < all ? shown.length + " of " : "") + all + (all === 1 ? " machine" : " machines");
    setText(this.count, count);
  }

  #chip(label, text = label, name = null) {
    const chip = button(printable(text).replace(/=$/, ""), () => this.#toggle(label), { class: "label", title: printable(label), "aria-label": name });
    chip.setAttribute("aria-pressed", String(this.#labels.includes(label)));
    return chip;
  }

  #row(machine) {
    let row = this.#rows.get(machine.name);
    if (!row) {
      const part = () => element("span"), about = () => element("span", { class: "about" });
      row = { link: element("a", { text: printable(machine.name) }), host: about(), state: part(), joined: about(), sessions: part(), processes: about(), system: part(), sandbox: about(), labels: element("div", { class: "labels", role: "group", "aria-label": "Labels of " + printable(machine.name) }), said: null };
      row.element = element("li", {},
        element("div", {}, row.link, row.host), element("div", { class: "serves" }, row.state, row.joined),
        element("div", {}, row.sessions, row.processes), row.labels, element("div", {}, row.system, row.sandbox));
      this.#rows.set(machine.name, row);
    }
    const { load } = machine, version = printable(machine.version);
    setAttribute(row.link, "href", address(machine.name, this.#labels));
    setText(row.host, printable(machine.host));
    setAttribute(row.host, "title", printable(machine.host));
    setText(row.state, stateOf(machine));
    setAttribute(row.element, "class", stateOf(machine));
    const age = Date.now() - Date.parse(machine.joined);
    setText(row.joined, age < 60_000 ? "joined just now" : "joined " + duration(age) + " ago"); // or it would change every second
    setText(row.sessions, count(load.sessions) + (load.capacity > 0 ? " of " + count(load.capacity) : "") + " sessions");
    setText(row.processes, count(load.processes) + (load.processes === 1 ? " process" : " processes"));
    setText(row.system, [printable(machine.system), version.length > 14 ? version.slice(0, 12) + "…" : version].filter(Boolean).join(" · "));
    setAttribute(row.system, "title", version);
    setText(row.sandbox, printable(sandboxOf(machine)));
    this.#showLabels(row, labelsOf(machine));
    return row.element;
  }

  // showLabels makes buttons only for labels that were others before, and so leaves the focus
  // where it is.
  #showLabels(row, own) {
    const said = JSON.stringify(own);
    if (said !== row.said) row.labels.replaceChildren(...own.map((label) => this.#chip(label)));
    row.said = said;
    row.labels.hidden = own.length === 0;
    for (const [i, label] of own.entries()) setAttribute(row.labels.children[i], "aria-pressed", this.#labels.includes(label));
  }

  // move lets the arrow keys go from machine to machine.
  #move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("li");
    const next = step > 0 ? row?.nextElementSibling : row?.previousElementSibling;
    if (!step || !next) return;
    next.querySelector("a").focus();
    event.preventDefault();
  }
}

function labelsOf(machine) {
  return Object.entries(machine.labels ?? {}).map(([key, value]) => key + "=" + value);
}

function stateOf(machine) {
  return machine.load.draining ? "draining" : "serving";
}

const sandboxes = new Map([["auto", "automatic"], ["require", "required"], ["landlock", "Landlock"]]); // by the value of --sandbox

function sandboxOf({ sandbox }) {
  return sandbox ? "sandbox: " + (sandboxes.get(sandbox) ?? sandbox) : "";
}

const count = (n) => n.toLocaleString("en");
