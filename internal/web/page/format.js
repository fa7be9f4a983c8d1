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
  if (!Number.isFinite(ms)) return "–";
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
const invisible = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu;
const marks = /(\p{M}{4})\p{M}+/gu; // on one letter, which would be drawn over what is around it
const fromRight = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
const mostCharacters = 4096; // of a text that is shown on one line

// printable shows text of a program or a client on one line. What is written from right to left
// stays in its place. It shows what it returned once more as it is.
export function printable(text, most = mostCharacters) {
  if (typeof text === "number") text = String(text);
  if (typeof text !== "string") return "";
  if (fromRight.test(text)) text = isolated.exec(text)?.[1] ?? text;
  if (text.length > most) text = text.slice(0, most) + "…";
  text = text.replace(invisible, (c) => "\\u" + c.codePointAt(0).toString(16).padStart(4, "0")).replace(marks, "$1…");
  return fromRight.test(text) ? "\u2068" + text + "\u2069" : text;
}

const isolated = /^\u2068([^\u2066-\u2069]*)\u2069$/;

// command shows a command line as one would type it.
export function command(argv, truncated, most) {
  const words = (argv ?? []).map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replaceAll("'", "'\\''") + "'"));
  return printable(words.join(" "), most) + (truncated ? " …" : "");
}

// shortVersion shows a version, which may have a commit at its end.
export const shortVersion = (version) => printable(version, version?.length > 14 ? 12 : 14);

// path shows a file: URI as the path that it names.
export const path = (uri) => printable(plain(uri));

// plain returns the path that a file: URI names, as it is.
export function plain(uri) {
  if (typeof uri !== "string" || !uri.startsWith("file://")) return uri;
  try {
    return decodeURIComponent(uri.slice("file://".length));
  } catch {
    return uri;
  }
}

const enders = new Map([
  ["client", "ended by a client"], ["timeout", "ended by its timeout"], ["outputLimit", "ended by its output limit"],
  ["sessionExpired", "ended with its session"], ["serverShutdown", "ended with the server"],
]);

// ending says how a process ended, or that it runs.
export function ending(process) {
  if (process.state === "background") return "left running";
  if (process.exitCode == null) return "running";
  const texts = [process.signal ? "killed by " + printable(process.signal, 40) : process.exitCode < 0 ? "exit status unknown" : "exit status " + process.exitCode];
  if (process.coreDumped) texts.push("dumped core");
  if (process.oomKilled) texts.push("out of memory");
  if (enders.has(process.endedBy)) texts.push(enders.get(process.endedBy));
  return texts.join(", ");
}
