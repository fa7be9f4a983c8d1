// Sessions that the person at this page has taken over. Each has a connection of its own,
// which owns it until the person gives it back, or somebody else takes it.

import { Connection, encode } from "./wire.js";

// The server keeps a session that was taken over for so long when this page is gone.
const keepMs = 10 * 60 * 1000;

class Ownership {
  #connection;
  #writes = Promise.resolve();

  constructor(connection) {
    this.#connection = connection;
  }

  // write sends what was typed, in order.
  write(processId, text) {
    const data = new TextEncoder().encode(text);
    this.#writes = this.#writes.catch(() => {}).then(() => this.#connection.call("process/write", { processId, chunk: encode(data) }));
    return this.#writes;
  }

  resize(processId, size) {
    return this.#connection.call("process/resize", { processId, size });
  }

  close() {
    this.#connection.close();
  }
}

export class Takeovers extends EventTarget {
  #owned = new Map(); // by id of the session
  #model;

  constructor(model) {
    super();
    this.#model = model;
  }

  of(sessionId) {
    return this.#owned.get(sessionId) ?? null;
  }

  async take(sessionId) {
    let lost = "";
    const connection = await Connection.open({
      observe: sessionId,
      notified: (method) => {
        if (method === "session/takenOver") lost = "Somebody else has taken the session over.";
      },
    });
    try {
      await connection.call("session/takeOver");
      // Without a lease the session would end soon after this page is closed.
      const session = this.#model.sessions.get(sessionId);
      if (!session?.keepMs && connection.machine.environmentInfo.capabilities.sessionKeep) await connection.call("session/keep", { keepMs });
    } catch (error) {
      connection.close();
      throw error;
    }
    const ownership = new Ownership(connection);
    this.#owned.set(sessionId, ownership);
    this.dispatchEvent(new Event("change"));
    connection.closed.then((error) => {
      if (this.#owned.get(sessionId) !== ownership) return; // given back
      this.#owned.delete(sessionId);
      this.dispatchEvent(new CustomEvent("lost", { detail: lost || "You no longer have the session: " + error.message }));
      this.dispatchEvent(new Event("change"));
    });
  }

  // give leaves the session at the server, for whoever had it to come back to.
  async give(sessionId) {
    const ownership = this.#owned.get(sessionId);
    this.#owned.delete(sessionId);
    ownership?.close();
    this.dispatchEvent(new Event("change"));
  }
}
