// The list of sessions and their processes.

import { arrange, button, element, setAttribute, setText } from "./dom.js";
import { bytes, command, duration, ending, path, percent, printable } from "./format.js";

const mostRows = 1000; // processes and sessions that are shown
const mostName = 80; // characters of a name in a line with others, which it must not push out of sight

export class List {
  #model;
  #open; // a function that opens or closes the pane of a key
  #isOpen;
  #hides; // a function that says whether a session is only there for the page
  #rows = new Map(); // by key
  #groups = new Map(); // by id of the session
  #filter = "";

  constructor(model, { open, isOpen, hides }) {
    this.#model = model;
    this.#open = open;
    this.#isOpen = isOpen;
    this.#hides = hides;
    const filter = element("input", {
      type: "search", id: "filter", placeholder: "Filter (press /)", "aria-label": "Filter the processes",
      oninput: () => {
        this.#filter = filter.value.toLowerCase();
        this.show();
      },
    });
    this.groups = element("div", { class: "groups" });
    this.empty = element("p", { class: "hint" });
    this.element = element("nav", { class: "list", "aria-label": "Processes" }, filter, this.empty, this.groups);
    this.element.addEventListener("keydown", (event) => this.#move(event));
    model.addEventListener("change", () => this.show());
  }

  focusFilter() {
    this.element.querySelector("#filter").focus();
  }

  // move lets the arrow keys go from process to process.
  #move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const buttons = [...this.element.querySelectorAll("button.process")];
    const at = buttons.indexOf(document.activeElement);
    const next = buttons[at < 0 ? (step > 0 ? 0 : buttons.length - 1) : at + step];
    if (next) {
      next.focus();
      event.preventDefault();
    }
  }

  #matches(process, session) {
    if (!this.#filter) return true;
    const text = [command(process.argv), path(process.cwd ?? ""), process.processId, session?.name, session?.clientName, session?.principal];
    return text.join(" ").toLowerCase().includes(this.#filter);
  }

  show() {
    const bySession = new Map([...this.#model.sessions.keys()].map((id) => [id, []]));
    for (const [key, process] of this.#model.processes) {
      if (this.#matches(process, this.#model.sessions.get(process.sessionId))) bySession.get(process.sessionId)?.push([key, process]);
    }
    const groups = [];
    let left = mostRows;
    for (const [id, processes] of bySession) {
      if (processes.length === 0 && (this.#filter || this.#hides(id))) continue;
      if (left > 0) groups.push(this.#group(id, processes.slice(0, left)));
      left -= 1 + processes.length;
    }
    for (const key of this.#rows.keys()) if (!this.#model.processes.has(key)) this.#rows.delete(key);
    for (const id of this.#groups.keys()) if (!bySession.has(id)) this.#groups.delete(id);
    arrange(this.groups, groups);
    let hint = "";
    if (groups.length === 0) hint = this.#filter ? "Nothing matches." : "Nothing runs here.";
    else if (left < 0) hint = `Only ${mostRows.toLocaleString("en")} are shown. Filter to see others.`;
    else if (this.#model.truncated) hint = "There is more than the server lists.";
    setText(this.empty, hint);
  }

  #group(id, processes) {
    let group = this.#groups.get(id);
    if (!group) {
      const title = element("h2"), state = element("p", { class: "hint" }), rows = element("ul");
      group = { title, state, rows, element: element("section", {}, title, state, rows) };
      this.#groups.set(id, group);
    }
    const session = this.#model.sessions.get(id);
    setText(group.title, printable(session.name || session.clientName || id, mostName));
    const about = [session.name ? printable(session.clientName, mostName) : "", session.own ? "" : "of " + printable(session.principal, mostName), printable(session.state, mostName)];
    if (session.endsAtMs) about.push("ends in " + duration(session.endsAtMs - Date.now()));
    if (session.observers) about.push(session.observers + (session.observers === 1 ? " watches" : " watch"));
    setText(group.state, about.filter(Boolean).join(" · "));
    setAttribute(group.element, "aria-label", "Session " + group.title.textContent);
    // What a process has left running is shown below it.
    const left = new Map(), rows = [];
    for (const [key, process] of processes) {
      if (process.state !== "background") continue;
      if (!left.has(process.parentProcessId)) left.set(process.parentProcessId, []);
      left.get(process.parentProcessId).push([key, process]);
    }
    for (const [key, process] of processes) {
      if (process.state === "background") continue;
      rows.push(this.#row(key, process, false));
      for (const [leftKey, one] of left.get(process.processId) ?? []) rows.push(this.#row(leftKey, one, true));
      left.delete(process.processId);
    }
    for (const some of left.values()) for (const [key, process] of some) rows.push(this.#row(key, process, true));
    arrange(group.rows, rows);
    return group.element;
  }

  #row(key, process, nested) {
    let row = this.#rows.get(key);
    if (!row) {
      const name = element("span", { class: "command" }), about = element("span", { class: "about" }), use = element("span", { class: "use" });
      const open = button("", () => this.#open(key), { class: "process" });
      open.append(name, use, about);
      setText(name, command(process.argv, process.argvTruncated) || printable(process.processId));
      row = { name, about, use, directory: process.cwd ? path(process.cwd) : "", button: open, element: element("li", {}, open) };
      this.#rows.set(key, row);
    }
    const used = this.#model.used(key);
    const runs = process.state === "background" || process.exitCode == null;
    setText(row.use, runs && used ? percent(used.cpu) + " · " + bytes(used.memory) : "");
    const about = [ending(process), row.directory];
    const age = Date.now() - process.startedAtMs;
    if (runs && age >= 60_000) about.splice(1, 0, duration(age)); // or every row would change every second
    setText(row.about, about.filter(Boolean).join(" · "));
    setAttribute(row.element, "class", (nested ? "nested " : "") + (runs ? "running" : process.exitCode === 0 ? "succeeded" : "failed"));
    row.button.disabled = process.state === "background";
    if (!row.button.disabled) setAttribute(row.button, "aria-pressed", String(this.#isOpen(key)));
    return row.element;
  }
}

