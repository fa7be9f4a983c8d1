//go:build core

package session

// Screens says that this program cannot tell what a terminal shows.
const Screens = false

// picture is nothing in a program without screens.
type picture struct{}

func (*picture) drop() {}
