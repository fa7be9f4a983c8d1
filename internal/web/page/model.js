// What runs at the server: sessions, processes, and what they use, asked for again and
// again while somebody looks.

import { Lost } from "./wire.js";

const interval = 1000; // milliseconds between two questions, at least
const usageInterval = 2000; // the server may search all processes of its system for it
const maxSamples = 150; // of a process: five minutes

export class Model extends EventTarget {
  sessions = new Map(); // by id
  processes = new Map(); // by key
  samples = new Map(); // by key: lists of {at, cpu, memory, cpuMs}
  truncated = false;
  #link;

  constructor(link) {
    super();
    this.#link = link;
  }

  static key(process) {
    return process.sessionId + " " + process.processId;
  }

  // commands returns the keys of the processes that a client started in a session, in the
  // order of their starts.
  commands(sessionId) {
    return [...this.processes].filter(([, process]) => process.sessionId === sessionId && process.state !== "background")
      .sort(([, a], [, b]) => (a.startedAtMs ?? 0) - (b.startedAtMs ?? 0)).map(([key]) => key);
  }

  // run asks until the person has signed out.
  async run() {
    let usedAt = 0;
    for (;;) {
      await this.#link.connected();
      const began = performance.now();
      try {
        await this.#list();
        if (this.#link.has("processUsage") && began - usedAt >= usageInterval - interval / 2) {
          usedAt = began;
          await this.#use();
        }
        await idle(); // what a person does comes first
        this.dispatchEvent(new Event("change"));
      } catch (error) {
        if (!(error instanceof Lost)) this.dispatchEvent(new CustomEvent("problem", { detail: error.message }));
      }
      // A server that needs long for an answer is asked less often.
      await pause(Math.max(interval, 4 * (performance.now() - began)));
    }
  }

  // refresh asks for the sessions and processes now.
  async refresh() {
    await this.#list();
    this.dispatchEvent(new Event("change"));
  }

  async #list() {
    const [sessions, processes] = await Promise.all([
      this.#link.call("session/list"), this.#link.call("process/list", { all: true }),
    ]);
    this.truncated = Boolean(sessions.truncated || processes.truncated);
    this.sessions = new Map(sessions.sessions.map((session) => [session.sessionId, session]));
    this.processes = new Map(processes.processes.map((process) => [Model.key(process), process]));
    for (const key of this.samples.keys()) if (!this.processes.has(key)) this.samples.delete(key);
  }

  async #use() {
    const usage = await this.#link.call("process/usage", { all: true });
    const at = performance.now();
    for (const used of usage.processes) {
      const key = Model.key(used);
      const list = this.samples.get(key) ?? [];
      const last = list.at(-1);
      const cpu = last ? Math.max(0, (100 * (used.cpuMs - last.cpuMs)) / (at - last.at)) : null;
      list.push({ at, cpu, memory: used.memoryBytes, cpuMs: used.cpuMs });
      if (list.length > maxSamples) list.shift();
      this.samples.set(key, list);
    }
  }

  // used returns the last sample of a process that runs.
  used(key) {
    const process = this.processes.get(key);
    return process && process.state !== "closed" ? this.samples.get(key)?.at(-1) : undefined;
  }
}

// idle waits until the browser has nothing else to do, or a second.
function idle() {
  if (!window.requestIdleCallback) return Promise.resolve();
  return new Promise((resolve) => requestIdleCallback(resolve, { timeout: 1000 }));
}

// pause waits, and while the page is hidden until it is shown.
export async function pause(ms) {
  await new Promise((resolve) => setTimeout(resolve, ms));
  while (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
}
