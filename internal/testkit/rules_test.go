package testkit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// top is the top of the repository.
const top = "../.."

// timed are the functions whose result depends on how fast the machine is.
var timed = map[string][]string{
	"time":    {"Sleep", "After", "Tick", "NewTimer", "NewTicker"},
	"context": {"WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause"},
}

// mayWait are the functions of tests that may call one of timed, by reason.
var mayWait = map[string][]string{
	"its own deadline is what the test is about": {
		"client/agent_test.go TestCollect",
		"client/control_test.go TestContextEndsProcess",
		"client/events_test.go TestPolling",
		"client/example_test.go ExampleFS_WithContext",
		"client/forward_test.go TestForwardCancelled",
		"client/connection_test.go TestCallsWait",
		"client/mcptransport/transport_test.go TestDeafServer",
		"client/recovery_test.go TestRequestThatBreaksConnections",
		"fleet/natstransport/conn_test.go TestInstances",
		"fleet/natstransport/conn_test.go TestServerRestarts",
		"transport/dial_test.go TestDialFails",
	},
	"is part of the work of a program that is not under test": {
		"client/mcptransport/transport_test.go Read",
		"client/mcptransport/transport_test.go serveMCP",
		"cmd/exec-server/ending_linux_test.go initializeAgain",
		"fleet/test/fleet/cluster_test.go typing",
		"fleet/test/fleet/main_test.go write",
		"internal/filesystem/export_linux_test.go HangInRename",
		"internal/rpc/drain_test.go TestDrain",
		"server/reserve_linux_test.go TestReadGrowingFile",
		"server/reserve_linux_test.go holdMemory",
		"server/watches_test.go TestWatchIsResumedAfterItsRootWasReplaced",
		"test/codex/helper_test.go stream",
		"test/codex/helper_test.go tree",
		"test/codex/helper_test.go wait",
		"test/doors/attack_linux_test.go attack",
		"test/doors/hostile_linux_test.go TestSlow",
		"test/page/fleet_many_test.go TestFleetOfThousands",
		"test/page/fleet_many_test.go comeAndGo",
		"test/page/load_test.go TestManyTerminals",
		"test/sandbox/bomb_linux_test.go bomb",
		"test/sandbox/race_linux_test.go TestMovedDirectories",
		"test/sandbox/sockets_linux_test.go TestSocketDirectoriesComeAndGo",
		"test/sandbox/sockets_linux_test.go TestSocketsComeAndGo",
		"test/sandbox/sockets_linux_test.go connectAll",
	},
	"polls, because nothing tells": {
		"fleet/test/fleet/cluster_test.go dialPatiently",
		"fleet/test/fleet/through_test.go fleetOf",
		"server/observe_test.go observe",
		"test/chaos/chaos_test.go observe",
		"test/chaos/chaos_test.go run",
		"test/codex/helper_test.go logLines",
		"test/codex/run_test.go waitFor",
		"test/doors/attack_linux_test.go report",
		"test/faults/scenarios_test.go nothingRuns",
		"test/faults/scenarios_test.go shows",
		"test/metrics/metrics_test.go TestPrometheus",
		"test/model/driver_test.go attach",
		"test/model/driver_test.go finish",
		"test/model/observe_test.go finish",
		"test/page/page_test.go until",
		"test/page/player_test.go TestPlayerOfAsciinema",
		"test/sandbox/life_linux_test.go eventually",
		"test/sandbox/propagation_linux_test.go mountLater",
	},
	"ends a test that hangs; nothing that works takes as long": {
		"cmd/exec-server/main_test.go await",
		"cmd/exec-server/main_test.go kill",
		"cmd/exec-server/main_test.go wait",
		"test/chaos/chaos_test.go TestChaos",
		"test/codex/run_test.go waitClient",
		"test/codex/watched_test.go watch",
	},
	"a fault that comes within this time is seen; none comes of the time": {
		"client/connection_test.go TestAcknowledging",
		"cmd/exec-server/ending_linux_test.go initializeUntil",
		"fleet/internal/fleet/fleet_test.go TestNothingIsAcknowledgedEarly",
		"fleet/internal/fleet/hostile_test.go TestTwoClaimants",
		"fleet/natstransport/conn_test.go TestIdle",
		"fleet/test/fleet/flow_test.go TestStalledReader",
		"internal/filesystem/missing_linux_test.go TestMissingWatchWaitsForBegin",
		"internal/filesystem/missing_linux_test.go TestSystemMissingWatchFires",
		"internal/filesystem/missing_linux_test.go wantSilence",
		"internal/ownership/group_linux_test.go stays",
		"internal/ownership/ownership_linux_test.go endsNotWithin",
		"internal/ownership/undying_linux_test.go stayAlive",
		"internal/process/input_test.go TestUnreadTerminalInputAtExit",
		"internal/session/observers_test.go TestClosedProcessesWaitForTheirOwner",
		"server/tcp_test.go TestTCPFlood",
		"server/watches_test.go TestUnwatchIsTheEnd",
	},
	"tries many moments for a race, and is right at each": {
		"internal/process/background_test.go TestTerminateAboutTheTimeOfClosed",
		"internal/session/session_test.go TestResumeStopsTheClock",
		"test/chaos/proxy_test.go misbehave",
		"test/chaos/proxy_test.go pump",
		"test/chaos/proxy_test.go wait",
		"test/faults/driver_test.go settle",
		"test/model/driver_test.go reconnect",
		"test/model/observe_test.go takeOver",
		"test/model/steps_test.go cut",
	},
	"the time without a link, or without a consumer, is what the test is about": {
		"client/paused_test.go TestConsumerPausesAtCodex",
		"client/paused_test.go stall",
		"fleet/test/fleet/cluster_test.go TestCluster",
		"fleet/test/fleet/frozen_test.go TestFrozenGateway",
		"fleet/test/fleet/many_test.go TestMany",
		"fleet/test/fleet/regions_test.go TestRegions",
		"test/codex/sleep_test.go TestSleepingLaptop",
		"test/page/doors_test.go TestWrongSecrets",
		"test/terminal/link_test.go TestCutLink",
		"test/terminal/link_test.go TestCutLinkInPrograms",
	},
}

// TestNoTestWaitsForAClock holds the tests to CONTRIBUTING.md: nothing that a test waits for, and
// nothing that it says does not happen, depends on time that passes. A wait of
// testkit.Patience is one for something that must happen, and in a bubble of
// synctest the time is fake.
func TestNoTestWaitsForAClock(t *testing.T) {
	reasons, excused := make(map[string]string), make(map[string]bool)
	for reason, names := range mayWait {
		for _, name := range names {
			reasons[name] = reason
		}
	}
	for _, file := range testFiles(t) {
		f := parseFile(t, file)
		for _, decl := range f.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, call := range timedCalls(fn) {
				name := file + " " + fn.Name.Name
				if reasons[name] != "" {
					excused[name] = true
					continue
				}
				t.Errorf("%s calls %s: wait for an event with testkit.Patience, use testing/synctest, or a barrier", name, call)
			}
		}
	}
	for name, reason := range reasons {
		if !excused[name] {
			t.Errorf("%s needs no exception any more: %s", name, reason)
		}
	}
}

// timedCalls returns the calls of timed in a function, but those in a bubble and those that
// wait with patience.
func timedCalls(fn *ast.FuncDecl) (calls []string) {
	ast.Inspect(fn, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		from, name := selector(call.Fun)
		if from == "synctest" && name == "Test" {
			return false
		}
		if slices.Contains(timed[from], name) && !isPatient(call) {
			calls = append(calls, from+"."+name)
		}
		return true
	})
	return calls
}

// isPatient reports whether an argument of a call has testkit.Patience.
func isPatient(call *ast.CallExpr) (patient bool) {
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			if _, name := selector(n); name == "Patience" { // of testkit, or what a test makes of it
				patient = true
			}
			return true
		})
	}
	return patient
}

// selector splits the expression from.name.
func selector(n ast.Node) (from, name string) {
	if s, ok := n.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok {
			return x.Name, s.Sel.Name
		}
	}
	return "", ""
}

// testFiles returns the files of all tests of the repository but those of testkit, from its top.
func testFiles(t *testing.T) (files []string) {
	t.Helper()
	err := fs.WalkDir(os.DirFS(top), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (name != "." && strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || name == "internal/testkit") {
			return fs.SkipDir
		}
		if strings.HasSuffix(name, "_test.go") {
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func parseFile(t *testing.T, name string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(top, filepath.FromSlash(name)), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestNamesOfSystemTests wants TestSystem before the names of the tests that call
// testkit.System, so that make test-system runs these alone of a package that has others. The
// packages below test have no others.
func TestNamesOfSystemTests(t *testing.T) {
	calls := make(map[string]map[string][]string) // by package and function
	for _, file := range testFiles(t) {
		dir := path.Dir(file)
		if strings.Contains("/"+dir, "/test/") {
			continue
		}
		if calls[dir] == nil {
			calls[dir] = make(map[string][]string)
		}
		for _, decl := range parseFile(t, file).Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil {
				calls[dir][fn.Name.Name] = append(calls[dir][fn.Name.Name], called(fn)...)
			}
		}
	}
	for dir, of := range calls {
		for name := range of {
			if strings.HasPrefix(name, "Test") && !strings.HasPrefix(name, "TestSystem") && reaches(of, name, nil) {
				t.Errorf("%s in %s calls testkit.System: it must be called TestSystem%s", name, dir, name[len("Test"):])
			}
		}
	}
}

// called returns the names of what a function calls: functions of its package, and testkit.System.
func called(fn *ast.FuncDecl) (names []string) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if name, ok := call.Fun.(*ast.Ident); ok {
				names = append(names, name.Name)
			} else if from, name := selector(call.Fun); from == "testkit" && name == "System" {
				names = append(names, "testkit.System")
			}
		}
		return true
	})
	return names
}

// reaches reports whether a function calls testkit.System, itself or through others of the package.
func reaches(calls map[string][]string, name string, seen []string) bool {
	if slices.Contains(seen, name) {
		return false
	}
	return name == "testkit.System" || slices.ContainsFunc(calls[name], func(next string) bool {
		return reaches(calls, next, append(seen, name))
	})
}
