// What this page reads of the answers of the protocol. At a gateway a machine may answer with
// anything: what is of another kind never gets further than here.

const text = (value) => typeof value === "string";
const number = Number.isFinite; // 1e999 is none
const truth = (value) => typeof value === "boolean";
const maybe = (of) => (value) => value == null || of(value);
const list = (of) => (value) => Array.isArray(value) && value.every((one) => of(one));

function members(known) {
  const all = Object.entries(known);
  return (value) => typeof value === "object" && value !== null && all.every(([name, of]) => of(value[name]));
}

const ending = {
  exitCode: maybe(number), signal: maybe(text), coreDumped: maybe(truth), oomKilled: maybe(truth), endedBy: maybe(text),
  rusage: maybe(members({ userMs: number, systemMs: number, maxRssBytes: maybe(number) })),
};
const command = { argv: list(text), argvTruncated: maybe(truth) };
const stream = maybe(members({ head: text, tail: text, omittedBytes: number, totalBytes: number }));

const answers = new Map([
  ["initialize", members({
    sessionId: maybe(text),
    environmentInfo: members({ executorVersion: maybe(text), platformOs: maybe(text), capabilities: members({}) }),
  })],
  ["session/list", members({
    truncated: maybe(truth),
    sessions: list(members({
      sessionId: text, name: maybe(text), clientName: maybe(text), principal: maybe(text), own: maybe(truth), state: text,
      endsAtMs: maybe(number), keepMs: maybe(number), observers: maybe(number),
    })),
  })],
  ["process/list", members({
    truncated: maybe(truth),
    processes: list(members({
      sessionId: text, processId: text, parentProcessId: maybe(text), pid: maybe(number), ...command, cwd: maybe(text), tty: maybe(truth),
      startedAtMs: maybe(number), state: text, ...ending,
    })),
  })],
  ["process/usage", members({ processes: list(members({ sessionId: text, processId: text, cpuMs: number, memoryBytes: number })) })],
  ["process/read", members({
    chunks: list(members({ seq: number, stream: text, chunk: text })), nextSeq: number, firstSeq: maybe(number), closed: truth, failure: maybe(text),
  })],
  ["process/snapshot", members({ nextSeq: number, stdout: stream, stderr: stream, terminal: stream })],
  ["process/screen", members({
    size: members({ rows: number, cols: number }), drawing: maybe(text), nextSeq: number, omittedBytes: number,
  })],
  ["recording/list", members({
    next: maybe(text),
    recordings: list(members({
      recordingId: text, ...command, cwd: maybe(text), live: maybe(truth), startedAtMs: number, endedAtMs: maybe(number), sizeBytes: number,
    })),
  })],
  ["recording/read", members({ chunk: text, eof: truth })],
  ["fs/readDirectory", members({
    truncated: maybe(truth),
    entries: list(members({ fileName: text, path: maybe(text), kind: maybe(text), modifiedAtMs: maybe(number), size: maybe(number) })),
  })],
  ["fs/changed", members({ watchId: text, events: list(members({ kind: text, path: maybe(text) })) })],
]);

// fits reports whether the page can read the result of a method, or the params of a
// notification. It reads nothing of those that are not listed.
export function fits(method, value) {
  return answers.get(method)?.(value) ?? true;
}

// within returns a size of a terminal, or the usual one instead of none, and at most the most.
export function within(n, usual, most) {
  return Number.isInteger(n) && n > 0 ? Math.min(n, most) : usual;
}
