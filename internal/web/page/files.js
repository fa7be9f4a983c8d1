// The files that were modified below the directory of a process since it started. A list of
// directories finds what changed before, and a watch of the server tells what changes now.

import { button, element, setText } from "./dom.js";
import { bytes, path, plain, printable } from "./format.js";
import { Connection, Lost, Refused } from "./wire.js";

const mostDirectories = 2000; // that are searched
const mostFiles = 300; // that are shown
const drawMs = 300; // from a change until the list shows it
const slackMs = 1000; // what a program writes at once may seem older than its start
const retryMs = 500; // after a lost connection
const unsearched = new Set([".git", "node_modules"]);

// Disk is a connection with a session of its own, which files and watches need. It is there
// while somebody looks at files.
export class Disk {
  sessionId = null;
  #opening = null; // a promise of a Connection
  #connection = null; // when it is there
  #watchers = new Map(); // by id of the watch
  #lastID = 0;

  connection() {
    this.#opening ??= this.#open();
    return this.#opening;
  }

  async #open() {
    try {
      const connection = await Connection.open({ observe: null, notified: (method, params) => this.#notified(method, params) });
      this.#connection = connection;
      this.sessionId = connection.machine.sessionId;
      connection.closed.then(() => this.#forget(connection));
      return connection;
    } catch (error) {
      this.#opening = null;
      throw error instanceof Refused ? new Error("Your credentials do not allow looking at files.") : error;
    }
  }

  #forget(connection) {
    if (this.#connection !== connection) return;
    this.#opening = this.#connection = this.sessionId = null;
    this.#watchers.clear();
  }

  // leave ends the session at once. It waits for nothing, because the page may be going.
  leave() {
    const connection = this.#connection;
    if (!connection) return;
    for (const watchId of this.#watchers.keys()) connection.call("fs/unwatch", { watchId }).catch(() => {}); // or the server would keep the session
    this.#forget(connection);
    connection.leave();
  }

  #notified(method, params) {
    if (method === "fs/changed") this.#watchers.get(params.watchId)?.(params.events);
  }

  // watch calls changed with the events below a directory. It returns {connection, end}.
  async watch(directory, changed) {
    const connection = await this.connection();
    const watchId = "files-" + ++this.#lastID;
    this.#watchers.set(watchId, changed);
    const end = async () => {
      if (!this.#watchers.delete(watchId)) return; // the connection was lost
      await connection.call("fs/unwatch", { watchId }).catch(() => {});
      if (this.#watchers.size === 0 && this.#connection === connection) this.leave();
    };
    try {
      await connection.call("fs/watch", { watchId, path: directory });
    } catch (error) {
      await end();
      throw error;
    }
    return { connection, end };
  }
}

// ChangedFiles shows the files of one process while it is open.
export class ChangedFiles {
  #page; // {disk, link}
  #process;
  #files = new Map(); // path to {kind, at, size}, the latest change last
  #stop = null; // a function that closes the panel; null while it is closed
  #timer = 0;

  constructor(page, process) {
    this.#page = page;
    this.#process = process;
    this.note = element("p", { class: "hint", role: "status" });
    this.list = element("ol", { class: "found", tabindex: "0", "aria-label": "Files that changed" });
    this.element = element("div", { class: "files", hidden: true }, this.note, this.list);
    this.button = button("Files", () => this.toggle(), { "aria-expanded": "false", title: "Files below its directory that were modified since it started" });
    this.button.hidden = !process.cwd || !page.link.has("fsWatch") || !page.link.has("fsMetadata");
  }

  get open() {
    return !this.element.hidden;
  }

  toggle() {
    this.element.hidden = !this.element.hidden;
    this.button.setAttribute("aria-expanded", String(this.open));
    if (!this.open) this.end();
    else if (path(this.#process.cwd) === "/") setText(this.note, "Its directory is /, and all that is below it is too much to look at.");
    else this.#run();
  }

  end() {
    this.#stop?.();
    this.#stop = null;
  }

  // run shows what changes until the panel is closed, also after a lost connection.
  async #run() {
    const closed = new Promise((resolve) => (this.#stop = resolve));
    const stop = this.#stop;
    const open = () => this.#stop === stop;
    while (open()) {
      try {
        await this.#page.link.connected();
        if (open()) await this.#follow(closed, open);
      } catch (error) {
        if (!open()) return;
        setText(this.note, error.message);
        if (!(error instanceof Lost)) return;
        await new Promise((resolve) => setTimeout(resolve, retryMs));
      }
    }
  }

  // follow returns when the panel is closed.
  async #follow(closed, open) {
    setText(this.note, "Looking…");
    // The watch comes first, or a change between the two would be missed.
    const { connection, end } = await this.#page.disk.watch(this.#process.cwd, (events) => this.#changed(events));
    try {
      const complete = await this.#search(connection, open);
      setText(this.note, "Modified since it started, by it or by others, below " + path(this.#process.cwd) + ", without .git and node_modules. " +
        "What is removed, or keeps an older time, shows only while you look." + (complete ? "" : " There are too many directories or files; the list is incomplete."));
      this.#draw();
      await Promise.race([closed, connection.closed.then((error) => Promise.reject(error))]);
    } finally {
      await end();
    }
  }

  #changed(events) {
    for (const { kind, path: where } of events) {
      if (!where || where.split("/").some((name) => unsearched.has(name))) continue;
      const size = kind === "removed" ? undefined : this.#files.get(where)?.size;
      this.#keep(where, { kind, at: Date.now(), size });
    }
    this.#drawSoon();
  }

  #keep(where, change) {
    this.#files.delete(where); // so that it comes last
    this.#files.set(where, change);
    if (this.#files.size > mostFiles) this.#files.delete(this.#files.keys().next().value);
  }

  // search looks for files that changed since the process started, while the panel is open,
  // and reports whether it has looked at all of them.
  async #search(connection, open) {
    const found = [], directories = [this.#process.cwd];
    let complete = true;
    for (let i = 0; i < directories.length && open(); i++) {
      if (i >= mostDirectories) {
        complete = false;
        break;
      }
      const { entries, truncated } = await this.#entries(connection, directories[i], i === 0);
      complete &&= !truncated;
      for (const entry of entries) {
        const where = entry.path ?? directories[i].replace(/\/$/, "") + "/" + spell(directories[i], entry.fileName);
        if (entry.kind === "directory" && !unsearched.has(entry.fileName)) directories.push(where);
        if (["file", "symlink"].includes(entry.kind) && entry.modifiedAtMs >= this.#process.startedAtMs - slackMs) {
          found.push([where, { kind: "modified", at: entry.modifiedAtMs, size: entry.size }]);
        }
      }
    }
    found.sort(([, a], [, b]) => a.at - b.at);
    const told = [...this.#files]; // by the watch, meanwhile
    this.#files.clear();
    for (const [where, change] of [...found, ...told]) this.#keep(where, change);
    return complete && found.length <= mostFiles;
  }

  async #entries(connection, directory, first) {
    try {
      return await connection.call("fs/readDirectory", { path: directory, details: true });
    } catch (error) {
      if (first || error instanceof Lost) throw error;
      return { entries: [] }; // it is gone, or closed to the server
    }
  }

  #drawSoon() {
    this.#timer ||= setTimeout(() => this.#draw(), drawMs);
  }

  #draw() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    const root = plain(this.#process.cwd).replace(/\/$/, "") + "/";
    this.list.replaceChildren(...[...this.#files].reverse().map(([where, { kind, at, size }]) => {
      const name = plain(where);
      return element("li", {},
        element("span", { class: "hint", text: new Date(at).toLocaleTimeString() + " " + printable(kind) + " " }),
        element("code", { text: printable(name.startsWith(root) ? name.slice(root.length) : name) }),
        element("span", { class: "hint", text: size == null ? "" : " " + bytes(size) }));
    }));
    if (this.#files.size === 0) this.list.replaceChildren(element("li", { class: "hint", text: "None." }));
  }
}

// spell writes a name as a part of a path of the same form: a URI or a plain path.
function spell(directory, name) {
  return directory.startsWith("file:") ? encodeURIComponent(name) : name;
}
