// How values look.

export function bytes(n) {
  if (n == null) return "–";
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024 || unit === "GiB") return (unit === "B" || n >= 100 ? Math.round(n) : n.toFixed(1)) + " " + unit;
    n /= 1024;
  }
}

export function percent(share) {
  return share == null ? "–" : (share < 10 ? share.toFixed(1) : Math.round(share)) + " %";
}

export function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " min";
  return Math.floor(s / 86400) + " days";
}

export function clock(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  const two = (n) => String(n).padStart(2, "0");
  const short = Math.floor((s % 3600) / 60) + ":" + two(s % 60);
  return s < 3600 ? short : Math.floor(s / 3600) + ":" + two(Math.floor((s % 3600) / 60)) + ":" + two(s % 60);
}

// Characters that do not show, or change the order of the text around them.
const invisible = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

// printable shows text of a program or a client on one line.
export function printable(text) {
  return String(text ?? "").replace(invisible, (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0"));
}

// command shows a command line as one would type it.
export function command(argv, truncated) {
  const words = (argv ?? []).map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'"));
  return printable(words.join(" ")) + (truncated ? " …" : "");
}

// path shows a file: URI as the path that it names.
export function path(uri) {
  if (typeof uri !== "string" || !uri.startsWith("file://")) return printable(uri);
  try {
    return printable(decodeURIComponent(uri.slice("file://".length)));
  } catch {
    return printable(uri);
  }
}

const enders = {
  client: "ended by a client", timeout: "ended by its timeout", outputLimit: "ended by its output limit",
  sessionExpired: "ended with its session", serverShutdown: "ended with the server",
};

// ending says how a process ended, or that it runs.
export function ending(process) {
  if (process.state === "background") return "left running";
  if (process.exitCode == null) return "running";
  const texts = [process.signal ? "killed by " + printable(process.signal) : process.exitCode < 0 ? "exit status unknown" : "exit status " + process.exitCode];
  if (process.coreDumped) texts.push("dumped core");
  if (process.oomKilled) texts.push("out of memory");
  if (enders[process.endedBy]) texts.push(enders[process.endedBy]);
  return texts.join(", ");
}
