package process

import (
	"os"
	"runtime"
	"strings"

	"execserver/protocol"
)

// strippedVariables are removed from every child's environment, wherever they come from:
// credentials of the programs around the server, and a switch of the server itself.
var strippedVariables = []string{
	"CODEX_EXEC_SERVER_NOISE_AUTH_TOKEN",
	"NODE_REPL_AUTH_TOKEN",
	"OPENAI_FEDERATION_RULE_ID",
	"OPENAI_IDENTITY_TOKEN_FILE",
	"OPENAI_WORKLOAD_IDENTITY_CONTEXT",
	"CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE",
}

// coreVariables are the variables that the "core" of EnvPolicy inherits from the server's
// environment.
var coreVariables = []string{
	"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TEMP", "TMP", "TMPDIR", "USER",
}

// defaultExcludes are the patterns of inherited variables that Environment removes unless
// the policy says otherwise.
var defaultExcludes = upperRunes([]string{"*KEY*", "*SECRET*", "*TOKEN*"})

// maxMatchCost bounds the matchCost of one environment.
const maxMatchCost = 64 << 20

// Environment returns the environment of a child (PROTOCOL.md, "Environment of a process").
// inherited is the server's environment in the form of os.Environ, policy may be nil, and
// env always wins. The error is a *protocol.Error about a policy that takes too much work.
func Environment(inherited []string, policy *protocol.EnvPolicy, env map[string]string) (map[string]string, error) {
	size := len(env)
	if policy != nil {
		size += len(inherited)
	}
	result := make(map[string]string, size)
	if policy != nil {
		if work := matchCost(inherited, policy); work > maxMatchCost {
			return nil, protocol.Errorf(protocol.CodeInvalidParams,
				"the bytes of the patterns of envPolicy, times those of the names that they are compared with, are %d; the limit is %d", work, maxMatchCost)
		}
		inherit(result, inherited, policy)
	}
	for name, value := range env {
		result[name] = value
	}
	for name := range result {
		if contains(strippedVariables, name) {
			delete(result, name)
		}
	}
	return result, nil
}

// matchCost returns the cost of matching the patterns of a policy: their bytes times those
// of the names. Each counts as one byte more, so that many empty ones count, too.
func matchCost(inherited []string, policy *protocol.EnvPolicy) (work int64) {
	names := int64(0)
	for _, entry := range inherited {
		name, _, _ := strings.Cut(entry, "=")
		names += int64(len(name)) + 1
	}
	work = names * lengthOf(policy.Exclude)
	for name := range policy.Set {
		names += int64(len(name)) + 1
	}
	return work + names*lengthOf(policy.IncludeOnly)
}

func lengthOf(patterns []string) (n int64) {
	for _, pattern := range patterns {
		n += int64(len(pattern)) + 1
	}
	return n
}

func inherit(result map[string]string, inherited []string, policy *protocol.EnvPolicy) {
	exclude, includeOnly := upperRunes(policy.Exclude), upperRunes(policy.IncludeOnly)
	for _, entry := range inherited {
		name, value, ok := strings.Cut(entry, "=")
		if !ok || policy.Inherit == protocol.InheritNone {
			continue
		}
		if policy.Inherit == protocol.InheritCore && !contains(coreVariables, name) {
			continue
		}
		if !policy.IgnoreDefaultExcludes && matchesAny(defaultExcludes, name) {
			continue
		}
		if matchesAny(exclude, name) {
			continue
		}
		result[name] = value
	}
	for name, value := range policy.Set {
		result[name] = value
	}
	if len(includeOnly) == 0 {
		return
	}
	for name := range result {
		if !matchesAny(includeOnly, name) {
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

// upperRunes converts patterns for matchesAny.
func upperRunes(patterns []string) [][]rune {
	list := make([][]rune, len(patterns))
	for i, pattern := range patterns {
		list[i] = []rune(strings.ToUpper(pattern))
	}
	return list
}

// matchesAny reports whether one of the patterns, in upper case, matches the name in any
// case.
func matchesAny(patterns [][]rune, name string) bool {
	if len(patterns) == 0 {
		return false
	}
	n := []rune(strings.ToUpper(name))
	for _, pattern := range patterns {
		if matches(pattern, n) {
			return true
		}
	}
	return false
}

// matches reports whether pattern matches the whole name: * stands for any number of
// characters, ? for one. It backtracks to the latest * only, so its time is at most the
// product of the lengths.
func matches(p, n []rune) bool {
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
