package process

import (
	"os"
	"testing"

	"execserver/protocol"
)

// TestWriteTakenInPart: a write that the child has read in part was accepted, though the
// child exits before the rest. The child is a goroutine in this test, because it must exit
// between two system calls of the write.
func TestWriteTakenInPart(t *testing.T) {
	data := make([]byte, 1<<20)
	for range 2000 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		in := newInput(w, true, InputQuota{})
		read := make(chan int)
		go func() {
			n, _ := r.Read(make([]byte, 64<<10))
			_ = r.Close()
			read <- n
		}()
		status, _, _ := in.write(data, nil, nil, func(wait func()) { wait() })
		in.end()
		if n := <-read; n > 0 && status != protocol.WriteAccepted {
			t.Fatalf("%d bytes were read of a write that is %s", n, status)
		}
	}
}
