package serve

import (
	"fmt"

	"github.com/spf13/pflag"

	"execserver/internal/web"
	"execserver/server"
)

// webFlags are the flags of the server about its page.
type webFlags struct{ On bool }

func (o *webFlags) define(f *pflag.FlagSet) {
	f.BoolVar(&o.On, "web", false, "serve a page for browsers at /web of the WebSocket listener; exec-server web prints a link to it")
}

func (o *webFlags) check(main Address) error {
	if o.On && main.Kind != ListenWebSocket {
		return fmt.Errorf("--web requires a WebSocket listener, not %s", main.Kind)
	}
	return nil
}

func (o *webFlags) Apply(to *server.Options) {
	if o.On {
		to.Internal.Page = web.New()
	}
}
