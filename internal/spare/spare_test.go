package spare_test

import (
	"bytes"
	"testing"

	"execserver/internal/spare"
)

// TestGrow keeps what is there, and makes room for what is asked.
func TestGrow(t *testing.T) {
	for _, n := range []int{0, 1, 100, 1<<20 - 2, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3 << 20, 64<<20 - 2, 64 << 20} {
		b := spare.Grow([]byte{1, 2}, n)
		if !bytes.Equal(b, []byte{1, 2}) || cap(b)-len(b) < n {
			t.Errorf("room for %d: %d of %d bytes", n, len(b), cap(b))
		}
		if same := spare.Grow(b, cap(b)-len(b)); &same[0] != &b[0] {
			t.Errorf("room for %d: moved without need", n)
		}
		spare.Put(b)
	}
}

// TestSizes gets buffers that are large enough, whatever was put back.
func TestSizes(t *testing.T) {
	spare.Put(nil)
	spare.Put(make([]byte, 10))
	spare.Put(make([]byte, 1<<20))
	spare.Put(make([]byte, 1<<20+1))
	spare.Put(make([]byte, 8<<20))
	for _, n := range []int{0, 1, 1 << 20, 1<<20 + 1, 5 << 20, 64 << 20, 64<<20 + 1} {
		for range 3 {
			b := spare.Get(n)
			if len(b) != 0 || cap(b) < n {
				t.Errorf("%d: %d of %d bytes", n, len(b), cap(b))
			}
			defer spare.Put(b)
		}
	}
}

// TestReuse makes no new memory for messages of the same size.
func TestReuse(t *testing.T) {
	allocations := testing.AllocsPerRun(20, func() {
		b := spare.Grow(spare.Get(3<<20), 9<<20)
		spare.Put(b)
	})
	if allocations > 4 { // the pool's own, and what it forgets in between
		t.Errorf("%v allocations", allocations)
	}
}
