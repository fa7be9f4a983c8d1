package environments

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
)

// A gateway may be named in variables instead of in environments.toml.
const (
	GatewayVariable      = "EXEC_SERVER_GATEWAY"            // its URL
	GatewayTokenVariable = "EXEC_SERVER_GATEWAY_TOKEN_FILE" // a file with the bearer token for it

	gatewayName = "fleet" // what it is called in the names of machines
)

// IsMachine reports whether a name has the form of the machine of a gateway: with a slash,
// which the name of an environment cannot have.
func IsMachine(name string) bool { return strings.Contains(name, "/") }

// IsFleet reports whether a name is that of a machine of the gateway in the variable
// EXEC_SERVER_GATEWAY.
func IsFleet(name string) bool { return strings.HasPrefix(name, gatewayName+"/") }

// Gateway returns what the environment variables say about the gateway: its URL,
// ws://HOST:PORT or wss://HOST:PORT, and the file with the bearer token for it. Both may be "".
// The token is for no other gateway.
func Gateway() (url, tokenFile string) {
	url = os.Getenv(GatewayVariable)
	if url == "" {
		return "", ""
	}
	return url, os.Getenv(GatewayTokenVariable)
}

// GatewayURL returns the URL of a gateway, ws://HOST:PORT or wss://HOST:PORT and the path
// below which a proxy has it, if any. It also takes the URL of a machine of the gateway.
func GatewayURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "ws" && u.Scheme != "wss" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return "", errors.New("must be ws://HOST:PORT or wss://HOST:PORT")
	}
	u.RawPath, u.Path = "", root(u.Path)
	return u.String(), nil
}

// machine returns an entry for GATEWAY/MACHINE, which has the token and the timeouts of the
// gateway's.
func (c *config) machine(name string) (*configEntry, error) {
	gateway, machine, _ := strings.Cut(name, "/")
	entry, err := c.gateway(gateway)
	if err != nil {
		return nil, err
	}
	path, query, err := pathOf(machine)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	u, err := url.Parse(strings.TrimSpace(*entry.url))
	if err != nil {
		return nil, fmt.Errorf("%s: the URL of the gateway is invalid", name)
	}
	u.RawPath, u.Path = "", root(u.Path)+path
	values := u.Query() // a token may be in it
	delete(values, "label")
	if len(query) > 0 {
		values["label"] = query
	}
	u.RawQuery = values.Encode()
	address := u.String()
	entry.id, entry.url = name, &address
	return &entry, nil
}

// gateway returns the entry of a gateway.
func (c *config) gateway(name string) (configEntry, error) {
	entry, known := c.find(name)
	address, tokenFile := Gateway()
	switch {
	case name == gatewayName && known && address != "":
		return entry, fmt.Errorf("%s has an environment `%s`, and %s names a gateway, too; rename the environment, or unset the variable", c.source, name, GatewayVariable)
	case name == gatewayName && !known:
		return gatewayOfVariable(address, tokenFile)
	case name == localName:
		return entry, errors.New("local is this machine, and no gateway")
	case !known:
		return entry, fmt.Errorf("environment `%s` is not configured in %s; %s", name, c.source, c.listNames())
	case entry.url == nil:
		return entry, fmt.Errorf("environment `%s` in %s has a program, and not the URL of a gateway", name, c.source)
	}
	return entry, nil
}

func gatewayOfVariable(address, tokenFile string) (configEntry, error) {
	if address == "" {
		return configEntry{}, fmt.Errorf("%s/ is the gateway that %s names, and that is not set; set it to ws://HOST:PORT or wss://HOST:PORT", gatewayName, GatewayVariable)
	}
	address, err := GatewayURL(address)
	if err != nil {
		return configEntry{}, fmt.Errorf("%s %w", GatewayVariable, err)
	}
	return configEntry{url: &address, tokenFile: tokenFile}, nil
}

// isVariable reports whether the gateway of a machine is that of the variable.
func (c *config) isVariable(name string) bool {
	_, known := c.find(gatewayName)
	return IsFleet(name) && !known
}

// root returns the path of a gateway from that of one of its machines, or of any.
func root(path string) string {
	path = strings.TrimSuffix(path, "/")
	if above, ok := strings.CutSuffix(path, "/any"); ok {
		return above
	}
	if i := strings.LastIndex(path, "/env/"); i >= 0 && !strings.Contains(path[i+len("/env/"):], "/") {
		return path[:i]
	}
	return path
}

// IsNameOfMachine reports whether GATEWAY/NAME is the machine of that name: some names mean one
// that the gateway chooses, or none.
func IsNameOfMachine(name string) bool {
	path, _, err := pathOf(name)
	return err == nil && path != "/any"
}

// pathOf returns the path of a machine at a gateway, and the labels that it must have.
func pathOf(machine string) (path string, labels []string, err error) {
	const prefix = "label="
	selection, byLabel := strings.CutPrefix(machine, prefix)
	switch {
	case machine == "":
		return "", nil, errors.New("name the machine behind the slash, or any, or label=KEY=VALUE")
	case machine == "label", byLabel && (selection == "" || selection[0] == '='):
		return "", nil, errors.New("name the label, as label=KEY=VALUE, or label=KEY for any value")
	case byLabel:
		return "/any", strings.Split(selection, ","+prefix), nil
	case machine == "any":
		return "/any", nil, nil
	case len(machine) > maxIDLength || strings.ContainsFunc(machine, notInID):
		return "", nil, errors.New("a machine has a name of 1 to 64 of the characters A-Z a-z 0-9 _ -; by a label it is called label=KEY=VALUE")
	}
	return "/env/" + machine, nil, nil
}
