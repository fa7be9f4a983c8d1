// Package cli is shared by the commands of exec-server and exec-fleet: flags that name a machine,
// targets, usage errors, exit codes, advice on errors, and output as text, tables, JSON and help.
// The output may come from any server, so it never controls the terminal.
//
// The packages below it have the commands, and import it. Package root joins them.
package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// OneLine makes untrusted text fit on one line.
func OneLine(text string) string { return Printable(strings.Join(strings.Fields(text), " ")) }

// JSON prints one JSON document.
func JSON(w io.Writer, value any) error { return EncodeJSON(w, value, "  ") }

// EncodeJSON prints one JSON document with an indent, or on one line if indent is empty. It also
// escapes the control characters that JSON allows in strings, because a terminal could obey them.
func EncodeJSON(w io.Writer, value any, indent string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	var safe []byte
	for _, r := range text.String() {
		if unicode.IsControl(r) && r != '\n' {
			safe = fmt.Appendf(safe, `\u%04x`, r)
		} else {
			safe = utf8.AppendRune(safe, r)
		}
	}
	_, err := w.Write(safe)
	return err
}

// IsTerminal reports whether a file is a terminal.
func IsTerminal(file *os.File) bool { return term.IsTerminal(int(file.Fd())) }

// OnTerminal reports whether w is a terminal, and its width.
func OnTerminal(w io.Writer) (width int, ok bool) {
	file, ok := w.(*os.File)
	if !ok || !IsTerminal(file) {
		return 0, false
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width < 1 {
		width = 80
	}
	return width, true
}

// Printable returns text from another machine without characters that control the terminal or
// start a new line.
func Printable(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// PrintableLines is like Printable for text of several lines.
func PrintableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Printable(line)
	}
	return strings.Join(lines, "\n")
}

// Table prints rows in columns two spaces apart. right lists the columns that are aligned right.
func Table(w io.Writer, rows [][]string, right ...int) error {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	isRight := make(map[int]bool)
	for _, i := range right {
		isRight[i] = true
	}
	var text strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			switch {
			case isRight[i]:
				text.WriteString(space + cell)
			case i < len(row)-1:
				text.WriteString(cell + space)
			default:
				text.WriteString(cell)
			}
			if i < len(row)-1 {
				text.WriteString("  ")
			}
		}
		text.WriteByte('\n')
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// Columns prints names like ls, in columns from top to bottom that fit into width.
func Columns(w io.Writer, names []string, width int) error {
	longest := 0
	for _, name := range names {
		longest = max(longest, utf8.RuneCountInString(name))
	}
	columns := max(1, (width+2)/(longest+2))
	lines := (len(names) + columns - 1) / columns
	rows := make([][]string, lines)
	for i, name := range names {
		rows[i%lines] = append(rows[i%lines], name)
	}
	return Table(w, rows)
}

// Wrap joins words to lines of at most width characters. A longer word gets its own line.
func Wrap(words []string, width int) (lines []string) {
	for _, word := range words {
		last := len(lines) - 1
		if last < 0 || utf8.RuneCountInString(lines[last]+word) >= width {
			lines = append(lines, word)
			continue
		}
		lines[last] += " " + word
	}
	return lines
}

// ShortDuration returns a duration in its largest unit: 5s, 12m, 3h, 4d.
func ShortDuration(d time.Duration) string {
	const day = 24 * time.Hour
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}} {
		if d >= 2*unit.size {
			return strconv.FormatInt(int64(d/unit.size), 10) + unit.name
		}
	}
	return strconv.FormatInt(int64(max(0, d)/time.Second), 10) + "s"
}

// FormatSize returns a number of bytes in decimal units, such as 20.5 MB.
func FormatSize(bytes int64) string {
	value, unit := float64(bytes), "B"
	for _, larger := range []string{"kB", "MB", "GB", "TB", "PB"} {
		if value < 1000 {
			break
		}
		value, unit = value/1000, larger
	}
	if unit == "B" || value >= 100 {
		return fmt.Sprintf("%.0f %s", value, unit)
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// Remaining returns the time left, in seconds or in whole minutes: 45s, 7h59m. Unlike
// ShortDuration, it is never an hour too short.
func Remaining(d time.Duration) string {
	if d >= 2*time.Minute {
		d = d.Round(time.Minute)
	}
	return Spell(max(0, d))
}

// Spell formats a duration without trailing zeros: 8h, 1m30s.
func Spell(d time.Duration) string {
	text := d.Round(time.Second).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// Version returns the version of this program: that of the release build, or that of the module.
func Version(release string) string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "0.0.0-dev"
}

// Help prints the help text of a command, with its examples first. On a terminal it breaks lines
// between words.
func Help(command *cobra.Command, _ []string) {
	out := command.OutOrStdout()
	var about []string
	for _, part := range []string{command.Short, command.Example, command.Long} {
		if part != "" {
			about = append(about, part)
		}
	}
	example := command.Example
	command.Example = "" // the template would repeat it
	usage := command.UsageString()
	command.Example = example
	if width, ok := OnTerminal(out); ok {
		about[len(about)-1] = fill(about[len(about)-1], width)
		flags := command.LocalFlags()
		usage = strings.Replace(usage, strings.TrimRight(flags.FlagUsages(), "\n"),
			strings.TrimRight(flags.FlagUsagesWrapped(width), "\n"), 1)
	}
	fmt.Fprintf(out, "%s\n\n%s", strings.Join(about, "\n\n"), usage)
}

// fill rewraps each paragraph that has a line longer than width.
func fill(text string, width int) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, paragraph := range paragraphs {
		for line := range strings.SplitSeq(paragraph, "\n") {
			if len(line) > width {
				paragraphs[i] = strings.Join(Wrap(strings.Fields(paragraph), width), "\n")
				break
			}
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// PageLink prints the link to a page: path is the answer of the server at a URL, and query is
// added.
func PageLink(out io.Writer, at, path, query string, life time.Duration) error {
	page, err := url.Parse(path)
	if err != nil || page.Host != "" || page.Scheme != "" {
		return fmt.Errorf("the server answers with %q, which is not a path", path)
	}
	page.RawQuery = query
	link, err := pageURL(at, page)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, link); err != nil {
		return err
	}
	if path, isSocket := strings.CutPrefix(at, "unix://"); isSocket {
		fmt.Fprintf(os.Stderr, "A browser cannot open a unix socket. Forward port %s of the browser's machine to it: ssh -NL %[1]s:%s HOST\n",
			forwardedPort, QuoteShell(path))
	}
	if _, shows := OnTerminal(out); shows {
		fmt.Fprintf(os.Stderr, "The link works once, within %s.\n", Spell(life.Round(time.Second)))
	}
	return nil
}

// forwardedPort is the port in the link to a page that is on a unix socket.
const forwardedPort = "8765"

// pageURL returns the URL of a page of the server, for a browser on this machine.
func pageURL(at string, page *url.URL) (string, error) {
	u, err := url.Parse(at)
	if err == nil && u.Scheme == "unix" {
		u = &url.URL{Scheme: "ws", Host: "localhost:" + forwardedPort}
	}
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" {
		return "", errors.New("the page needs the address of the server, which this connection does not have; use --url ws://HOST:PORT, " +
			"with exec-server forward to the port if it is not reachable")
	}
	u.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	u.User, u.RawQuery = nil, page.RawQuery
	u.Path, u.RawPath, u.Fragment = strings.TrimSuffix(u.Path, "/")+page.Path, "", page.Fragment // a proxy may serve it below a path
	return u.String(), nil
}

// QuoteShell quotes a word for a shell if necessary.
func QuoteShell(word string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+=:@%,", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// WithoutSecrets returns a URL without the user and the query, which may be secret.
func WithoutSecrets(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "an invalid URL"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// IsBrokenPipe reports whether a write failed because the reader of standard output is gone.
func IsBrokenPipe(err error) bool {
	failed, ok := errors.AsType[*fs.PathError](err)
	return ok && failed.Path == os.Stdout.Name() && errors.Is(err, syscall.EPIPE)
}
