package client

import (
	"fmt"
	"unicode/utf8"

	"execserver/protocol"
)

// wantUTF8 returns an error if a start has text that is not UTF-8. The protocol cannot
// carry such text, and the JSON encoder would silently replace it with U+FFFD.
func wantUTF8(s *protocol.StartParams) error {
	want := func(what, text string) error {
		if utf8.ValidString(text) {
			return nil
		}
		return fmt.Errorf("%s %q is not UTF-8, and a server takes nothing else", what, text)
	}
	for i, arg := range s.Argv {
		if err := want(fmt.Sprintf("argument %d,", i), arg); err != nil {
			return err
		}
	}
	if s.Arg0 != nil {
		if err := want("argument 0,", *s.Arg0); err != nil {
			return err
		}
	}
	for name, value := range s.Env {
		if err := want("environment variable", name+"="+value); err != nil {
			return err
		}
	}
	return nil
}
