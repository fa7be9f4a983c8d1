package responses

import "fmt"

// codexConfig has Codex ask nobody but the server. With that model it offers the plain
// tools, without plugins it does not call home, and with the notice it does not first ask
// whether a newer model is wanted.
const codexConfig = `model = "gpt-5.5"
model_provider = "mock"
check_for_update_on_startup = false

[model_providers.mock]
name = "mock"
base_url = %q
wire_api = "responses"
requires_openai_auth = false
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[features]
plugins = false

[notice.model_migrations]
"gpt-5.5" = "gpt-6-sol"
`

// CodexConfig returns the content of a config.toml that has Codex use the server as its
// model, without an account.
func (s *Server) CodexConfig() string { return fmt.Sprintf(codexConfig, s.URL()) }
