// The machines of a gateway, asked for again and again while somebody looks. What a machine
// says about itself is the word of whoever runs it, and only ever text here.

import { arrange, button, element, setAttribute, setText } from "./dom.js";
import { duration, printable, shortVersion } from "./format.js";
import { pause } from "./model.js";
import { address, labels } from "./place.js";
import { machines, principal, signOut, SignedOut } from "./signin.js";
import { showState, themeButton } from "./top.js";

const interval = 2000; // milliseconds between two questions, at least
const mostRows = 100; // shown at a time: a browser that has thousands is slow for whoever types
const mostLabels = 20; // of a machine, unless one wants them all

export class Fleet {
  #askToSignIn; // a function that says why
  #known = null; // a list of machines, or null before the first
  #rows = new Map(); // by name, of those that are shown
  #from = ""; // where the part that is shown begins, in the order of the list; "" is its start
  #shown = []; // machines that match
  #labels = labels(); // that a machine must have
  #words = []; // that it must have, too
  #ended = false;

  constructor(askToSignIn, problem) {
    this.#askToSignIn = askToSignIn;
    this.connection = element("span", { class: "connection", role: "status" });
    this.filter = element("input", { type: "search", id: "filter", placeholder: "Filter (press /)", "aria-label": "Filter the machines", oninput: () => this.#changeFilter() });
    this.chosen = element("span", { class: "labels", role: "group", "aria-label": "Labels that are chosen" });
    this.count = element("p", { class: "hint", role: "status" });
    this.earlier = button("‹", () => this.#turn(-mostRows), { "aria-label": "Earlier machines" });
    this.later = button("›", () => this.#turn(mostRows), { "aria-label": "Later machines" });
    this.turns = element("span", { class: "turns", role: "group", "aria-label": "Part of the list" }, this.earlier, this.later);
    this.rows = element("ul", { class: "machines", "aria-label": "Machines" });
    this.rows.addEventListener("keydown", (event) => this.#move(event));
    const notice = element("p", { class: "announced", role: "status" });
    document.body.replaceChildren(
      element("header", { class: "top" },
        element("h1", { text: "Machines" }),
        element("span", { class: "machine", text: [location.host, principal() && "you are " + principal()].filter(Boolean).map((fact) => printable(fact)).join(" · ") }),
        this.connection,
        element("div", { class: "settings" }, themeButton(), button("Sign out", () => this.#signOut()))),
      notice,
      element("main", { class: "fleet" }, element("div", { class: "bar" }, this.filter, this.chosen, this.count, this.turns), this.rows));
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
        this.#known = (await machines()).map((machine) => new Known(machine)).sort((a, b) => (a.place < b.place ? -1 : 1));
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
    this.#from = "";
    this.#show();
  }

  // toggle makes machines need a label, or no longer.
  #toggle(label) {
    this.#labels = this.#labels.includes(label) ? this.#labels.filter((other) => other !== label) : [...this.#labels, label];
    history.replaceState(null, "", address(null, this.#labels));
    this.#from = "";
    this.#show();
  }

  // A chosen label is KEY=VALUE, or KEY for any value, as in the address /any of the gateway.
  #matches(known) {
    if (!this.#labels.every((want) => (want.includes("=") ? known.labels.includes(want) : known.labels.some((label) => label.startsWith(want + "="))))) return false;
    return this.#words.every((word) => known.text.includes(word));
  }

  #show() {
    arrange(this.chosen, this.#labels.map((label) => this.#chip(label, label + " ×", "No longer only " + printable(label))));
    if (!this.#known) return;
    const hadFocus = this.rows.contains(document.activeElement);
    this.#shown = this.#known.filter((known) => this.#matches(known));
    const begin = this.#begin();
    const part = this.#shown.slice(begin, begin + mostRows);
    const names = new Set(part.map(({ machine }) => machine.name));
    for (const name of this.#rows.keys()) if (!names.has(name)) this.#rows.delete(name);
    arrange(this.rows, part.map((known) => this.#row(known)));
    if (hadFocus && !this.rows.contains(document.activeElement)) this.filter.focus();
    this.#count(begin, part.length);
  }

  // begin returns the index of the first machine that is shown. The part begins at a place in
  // the order, and not at an index: machines that come and go before it do not move it.
  #begin() {
    if (this.#from === "") return 0;
    const at = this.#shown.findIndex((known) => known.place >= this.#from);
    return at >= 0 ? at : Math.max(0, this.#shown.length - mostRows);
  }

  #count(begin, length) {
    const all = this.#known.length, matching = this.#shown.length;
    let text = "There is no machine that you may use.";
    if (all > 0) text = (matching < all ? count(matching) + " of " : "") + count(all) + (all === 1 ? " machine" : " machines");
    if (length < matching) text += `, ${count(begin + 1)} to ${count(begin + length)} are shown`;
    setText(this.count, text);
    this.turns.hidden = length === matching;
    this.earlier.disabled = begin === 0;
    this.later.disabled = begin + length >= matching;
  }

  // turn shows another part of the list, and reports whether there is one.
  #turn(step) {
    const begin = this.#begin(), to = Math.max(0, begin + step);
    if (to === begin || to >= this.#shown.length) return false;
    this.#from = to === 0 ? "" : this.#shown[to].place;
    this.#show();
    this.rows.firstChild?.scrollIntoView({ block: "nearest" });
    return true;
  }

  #chip(label, text = label, name = null) {
    const chip = button(printable(text).replace(/=$/, ""), () => this.#toggle(label), { class: "label", title: printable(label), "aria-label": name });
    chip.setAttribute("aria-pressed", String(this.#labels.includes(label)));
    return chip;
  }

  #row({ machine, labels }) {
    let row = this.#rows.get(machine.name);
    if (!row) {
      const part = () => element("span"), about = () => element("span", { class: "about" });
      row = { link: element("a", { text: printable(machine.name) }), host: about(), state: part(), joined: about(), sessions: part(), processes: about(), system: part(), sandbox: about(), labels: element("div", { class: "labels", role: "group", "aria-label": "Labels of " + printable(machine.name) }), most: mostLabels, said: null };
      row.element = element("li", {},
        element("div", {}, row.link, row.host), element("div", { class: "serves" }, row.state, row.joined),
        element("div", {}, row.sessions, row.processes), row.labels, element("div", {}, row.system, row.sandbox));
      this.#rows.set(machine.name, row);
    }
    const { load } = machine;
    setAttribute(row.link, "href", address(machine.name, this.#labels));
    setText(row.host, printable(machine.host));
    setAttribute(row.host, "title", printable(machine.host));
    setText(row.state, stateOf(machine));
    setAttribute(row.element, "class", stateOf(machine));
    const age = Date.now() - Date.parse(machine.joined);
    setText(row.joined, age < 60_000 ? "joined just now" : "joined " + duration(age) + " ago"); // or it would change every second
    setText(row.sessions, count(load.sessions) + (load.capacity > 0 ? " of " + count(load.capacity) : "") + " sessions");
    setText(row.processes, count(load.processes) + (load.processes === 1 ? " process" : " processes"));
    setText(row.system, [printable(machine.system), shortVersion(machine.version)].filter(Boolean).join(" · "));
    setAttribute(row.system, "title", printable(machine.version));
    setText(row.sandbox, printable(sandboxOf(machine)));
    this.#showLabels(row, labels);
    return row.element;
  }

  // showLabels makes buttons only for labels that were others before, and so leaves the focus
  // where it is.
  #showLabels(row, own) {
    const some = own.slice(0, row.most), more = own.length - some.length, said = JSON.stringify([some, more]);
    if (said !== row.said) row.labels.replaceChildren(...some.map((label) => this.#chip(label)), ...(more > 0 ? [this.#more(row, own, more)] : []));
    row.said = said;
    row.labels.hidden = own.length === 0;
    for (const [i, label] of some.entries()) setAttribute(row.labels.children[i], "aria-pressed", this.#labels.includes(label));
  }

  #more(row, own, more) {
    return button("and " + more + " more", () => {
      const first = row.most;
      row.most = Infinity;
      this.#showLabels(row, own);
      row.labels.children[first].focus();
    }, { class: "label" });
  }

  // move lets the arrow keys go from machine to machine, also to another part of the list.
  #move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("li");
    if (!step || !row) return;
    let next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
    if (!next && this.#turn(step * mostRows)) next = step > 0 ? this.rows.firstElementChild : this.rows.lastElementChild;
    if (!next) return;
    next.querySelector("a").focus();
    event.preventDefault();
  }
}

// Known is a machine, with what it costs time to find out again for each key.
class Known {
  #text = null;

  constructor(machine) {
    this.machine = machine;
    this.labels = labelsOf(machine);
    this.place = machine.name.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(64, "0")) + " " + machine.name; // m-9 before m-10
  }

  // text is where the words of the filter are looked for.
  get text() {
    const { name, host, version, system } = this.machine;
    return (this.#text ??= [name, host, version, system, sandboxOf(this.machine), stateOf(this.machine), ...this.labels].join(" ").toLowerCase());
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
