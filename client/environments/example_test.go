package environments_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"execserver/client/environments"
)

// What environments.toml calls "box" is opened as Codex opens it.
func ExampleOpen() {
	env, err := environments.Open(context.Background(), "box", nil)
	if errors.Is(err, environments.ErrNone) {
		log.Fatal("nothing is to be executed")
	} else if err != nil {
		log.Fatal(err)
	}
	defer env.Close()
	fmt.Println(env.Info().Dir)
}
