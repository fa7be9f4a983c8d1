package process

import (
	"os"
	"runtime"
	"strings"

	"execserver/protocol"
)

// removed are the variables that no child gets, wherever they come from: credentials of
// the programs around the server, and a switch of the server itself.
var removed = []string{
	"CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
	"NODE_REPL_AUTH_TOKEN",
	"OPENAI_FEDERATION_RULE_ID",
	"OPENAI_IDENTITY_TOKEN_FILE",
	"OPENAI_WORKLOAD_IDENTITY_CONTEXT",
	"CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
}

// core are the variables that the "core" of EnvPolicy inherits from the server's
// environment.
var core = []string{
	"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "USER",
}

// defaultExcludes are the patterns of inherited variables that Environment drops unless
// the policy says otherwise.
var defaultExcludes = []string{"*KEY*", "*SECRET*", "*TOKEN*"}

// Environment returns the environment of a child (PROTOCOL.md, "Environment of a
// process"). inherited is the server's environment in the form of os.Environ, policy may
// be nil, and env always wins.
func Environment(inherited []string, policy *protocol.EnvPolicy, env map[string]string) map[string]string {
	size := len(env)
	if policy != nil {
		size += len(inherited)
	}
	result := make(map[string]string, size)
	if policy != nil {
		inherit(result, inherited, policy)
	}
	for name, value := range env {
		result[name] = value
	}
	for name := range result {
		if contains(removed, name) {
			delete(result, name)
		}
	}
	return result
}

func inherit(result map[string]string, inherited []string, policy *protocol.EnvPolicy) {
	for _, entry := range inherited {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || policy.Inherit == protocol.InheritNone {
			continue
		}
		if policy.Inherit == protocol.InheritCore && !contains(core, name) {
			continue
		}
		if !policy.IgnoreDefaultExcludes && matchesAny(defaultExcludes, name) {
			continue
		}
		if matchesAny(policy.Exclude, name) {
			continue
		}
		result[name] = value
	}
	for name, value := range policy.Set {
		result[name] = value
	}
	if len(policy.IncludeOnly) == 0 {
		return
	}
	for name := range result {
		if !matchesAny(policy.IncludeOnly, name) {
			delete(result, name)
		}
	}
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	return false
}

func matchesAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if matches(strings.ToUpper(p), strings.ToUpper(name)) {
			return true
		}
	}
	return false
}

// matches reports whether pattern matches the whole name: * stands for any number of
// characters, ? for one. It backtracks to the latest * only, so its time is at most the
// product of the lengths.
func matches(pattern, name string) bool {
	p, n := []rune(pattern), []rune(name)
	star, mark := -1, 0
	i, j := 0, 0
	for j < len(n) {
		switch {
		case i < len(p) && p[i] == '*':
			star, mark = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == n[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}

// ServerEnvironment returns the variables from which a policy inherits.
func ServerEnvironment() []string {
	if runtime.GOOS != "windows" {
		return os.Environ()
	}
	var env []string
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "=") { // "=C:" and the like are the current directories of drives
			env = append(env, entry)
		}
	}
	return env
}
