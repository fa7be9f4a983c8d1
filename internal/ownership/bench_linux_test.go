package ownership_test

import (
	"fmt"
	"testing"

	"execserver/internal/ownership"
	"execserver/internal/process"
	"execserver/protocol"
)

// BenchmarkStartToClosed is what a command costs that does nothing: from Start
// to the closed event, beside others that live. It must not depend on their
// number.
//
// By other means than a library's: EXEC_SERVER_TEST_MEANS=subreaper or cgroup.
func BenchmarkStartToClosed(b *testing.B) {
	ownership := benchOwnership(b)
	for _, live := range []int{1, 1000} {
		b.Run(fmt.Sprintf("live=%d", live), func(b *testing.B) {
			idle := process.Spec{Argv: []string{"/bin/sleep", "1000"}, Dir: "/"}
			owner := ownership.NewOwner()
			defer owner.Wait()
			defer owner.End(protocol.EndedBySessionExpired)
			for range live {
				defer benchStart(b, owner, idle).Release()
			}
			spec := process.Spec{Argv: []string{"/bin/true"}, Dir: "/"}
			for b.Loop() {
				p := benchStart(b, owner, spec)
				<-p.Closed()
				p.Release()
			}
		})
	}
}

func benchStart(b *testing.B, owner *ownership.Owner, spec process.Spec) *process.Process {
	b.Helper()
	p, err := process.Start(spec, &process.Options{Owner: owner})
	if err != nil {
		b.Fatal(err)
	}
	return p
}
