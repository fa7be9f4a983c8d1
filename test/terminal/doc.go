// Package terminal types into exec-server run -t and attach, which run in tmux, and looks
// at the screen as a person does.
package terminal
