// Package cli is what the command lines of exec-server and exec-fleet have in common: errors
// of usage, exit codes, advice on errors of clients, and the printing of text, tables, JSON
// and help. What is printed may come from anywhere, so it controls no terminal.
package cli

import (
	"bytes"
	"cmp"
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

// OneLine makes text from anywhere fit for one line.
func OneLine(text string) string { return Printable(strings.Join(strings.Fields(text), " ")) }

// JSON prints one JSON document.
func JSON(w io.Writer, value any) error { return EncodeJSON(w, value, "  ") }

// EncodeJSON prints one JSON document with an indent, or as one line if that is "".
// Control characters that JSON allows in strings are escaped, too: a terminal could obey
// them.
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

// OnTerminal reports whether w is a terminal, and its width.
func OnTerminal(w io.Writer) (width int, ok bool) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width < 1 {
		width = 80
	}
	return width, true
}

// Printable returns text from another machine as a person may see it: without characters
// that would control the terminal, or look like another line.
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

// Table prints rows in columns that are two spaces apart. right has the columns of
// numbers, whose ends are aligned.
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

// Columns prints names as ls does: in columns, top to bottom, of a width.
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

// Wrap joins words to lines of at most width characters, if no word is longer.
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

// Remaining returns how much time is left, in seconds or in whole minutes: 45s, 7h59m.
// Other than ShortDuration, it must not be an hour too short.
func Remaining(d time.Duration) string {
	if d >= 2*time.Minute {
		d = d.Round(time.Minute)
	}
	return Spell(max(0, d))
}

// Spell spells a duration without zeros at its end: 8h, 1m30s.
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

// Version returns the version of this program: that of its release build, or that of the
// module.
func Version(release string) string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "0.0.0-dev"
}

// Help prints the help text of a command. On a terminal it breaks the lines where the
// terminal ends, and not in the middle of a word, as the terminal would.
func Help(command *cobra.Command, _ []string) {
	out := command.OutOrStdout()
	about, usage := cmp.Or(command.Long, command.Short), command.UsageString()
	if width, ok := OnTerminal(out); ok {
		about = fill(about, width)
		flags := command.LocalFlags()
		usage = strings.Replace(usage, strings.TrimRight(flags.FlagUsages(), "\n"),
			strings.TrimRight(flags.FlagUsagesWrapped(width), "\n"), 1)
	}
	fmt.Fprintf(out, "%s\n\n%s", about, usage)
}

// fill breaks the lines of paragraphs anew if one is longer than width.
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

// PageLink prints a link to a path, with a query, that a server at a URL has answered.
func PageLink(out io.Writer, at, path, query string, life time.Duration) error {
	page, err := url.Parse(path)
	if err != nil || page.Host != "" || page.Scheme != "" {
		return fmt.Errorf("the server answers with %q, which is no path", path)
	}
	page.RawQuery = query
	link, err := pageURL(at, page)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, link); err != nil {
		return err
	}
	if _, shows := OnTerminal(out); shows {
		fmt.Fprintf(os.Stderr, "The link works once, within %s.\n", Spell(life.Round(time.Second)))
	}
	return nil
}

// pageURL returns the URL of a page of the server at a URL, for a browser on this machine.
func pageURL(at string, page *url.URL) (string, error) {
	u, err := url.Parse(at)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" {
		return "", errors.New("the page needs the address of the server, and this way to it has none; use --url ws://HOST:PORT, " +
			"with exec-server forward to the port if it is not reachable")
	}
	u.Scheme = map[string]string{"ws": "http", "wss": "https"}[u.Scheme]
	u.User, u.RawQuery = nil, page.RawQuery
	u.Path, u.RawPath, u.Fragment = strings.TrimSuffix(u.Path, "/")+page.Path, "", page.Fragment // a proxy may serve it below a path
	return u.String(), nil
}

// QuoteShell quotes a word for a shell if it needs to be.
func QuoteShell(word string) string {
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._-+=:@%,", r)
	}
	if word != "" && !strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// WithoutSecrets returns a URL without the parts that may be secret.
func WithoutSecrets(rawURL string) string {
	u, err := url.Parse(rawURL)
	if err != nil {
		return "an invalid URL"
	}
	u.User, u.RawQuery = nil, ""
	return u.String()
}

// IsBrokenPipe reports whether an error says that nobody reads this program's standard
// output any more.
func IsBrokenPipe(err error) bool {
	failed, ok := errors.AsType[*fs.PathError](err)
	return ok && failed.Path == os.Stdout.Name() && errors.Is(err, syscall.EPIPE)
}
