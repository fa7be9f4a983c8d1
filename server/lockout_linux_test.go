package server_test

import (
	"fmt"
	"strings"
	"testing"

	"execserver/internal/testkit"
	"execserver/protocol"
	"execserver/server"
)

// Who may observe the sessions of others cannot keep their owners from observing them.
func TestObserversOfOthers(t *testing.T) {
	const limit, each = 8, 4
	as := serveTokens(t, server.Options{Session: server.SessionOptions{MaxObservers: limit}}, map[string]string{
		"owner": `scope = ["exec"]`, "watcher": `scope = ["observe"]`, "second": `scope = ["observe"]`,
	})
	of := newCaller(t, as("owner"), "").SessionID
	watch := func(who string) error {
		if err := connect(t, as(who)).initialize(params{"clientName": "test", "observeSessionId": of}); err != nil {
			return err
		}
		return nil
	}
	for i := range each {
		if err := watch("watcher"); err != nil {
			t.Fatalf("observer %d: %v", i, err)
		}
	}
	want := fmt.Sprintf("has %d observers of this principal, the limit is %d", each, each)
	if err := watch("watcher"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("one more: %v, want %s", err, want)
	}
	if err := watch("second"); err != nil {
		t.Errorf("another principal: %v", err)
	}
	heir := connect(t, as("owner"))
	if err := heir.initialize(params{"clientName": "test", "observeSessionId": of}); err != nil {
		t.Fatalf("the session's own principal: %v", err)
	}
	heir.result("session/takeOver", nil, new(struct{}))
	if err := watch("owner"); err != nil {
		t.Errorf("there is a place again: %v", err)
	}
}

// A principal whose file requests hang in sandboxes leaves places to others, over however
// many connections it has sent them.
func TestSystemQuotaOfConfinedOperations(t *testing.T) {
	t.Parallel() // it mostly waits
	if !testkit.InMountNamespace(t) {
		return
	}
	const limit, each = 8, 4
	full := map[string]string{"greedy": `scope = ["full"]`, "modest": `scope = ["full"]`}
	srv, as := newTokenServer(t, confiningOptions(t), full)
	server.LimitConfined(srv, limit)
	live := params{"path": t.TempDir(), "sandbox": hiding(t.TempDir())}
	modest := newCaller(t, as("modest"), "")
	if err := modest.call("fs/getMetadata", live).Error; err != nil {
		t.Skipf("no sandbox here: %v", err)
	}
	dead, revive := mountDead(t)
	hangs := params{"path": dead + "/f", "sandbox": live["sandbox"]}
	greedy := []*caller{newCaller(t, as("greedy"), ""), newCaller(t, as("greedy"), "")}
	var stuck []<-chan reply
	for i := range limit + 4 {
		stuck = append(stuck, greedy[i%2].send("fs/getMetadata", hangs))
	}
	confined(t, srv, 1+each) // what is sent later may overtake those that have no place yet
	want := fmt.Sprintf("of this principal, the limit is %d, and none has ended for", each)
	if err := greedy[0].call("fs/getMetadata", live).Error; err == nil || !strings.Contains(err.Message, want) {
		t.Errorf("beyond the quota: %v, want %s", err, want)
	}
	if err := modest.call("fs/getMetadata", live).Error; err != nil {
		t.Errorf("another principal: %v", err)
	}
	revive()
	for _, arrives := range stuck {
		if r := await(t, "an answer", arrives); r.Error == nil {
			t.Errorf("a file of a dead file system was found: %s", r.Result)
		}
	}
	if err := greedy[0].call("fs/getMetadata", live).Error; err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Open files of one principal leave descriptors to others. They come back, however they
// have ended.
func TestQuotaOfHandles(t *testing.T) {
	const limit, most = 8, 4
	dir := t.TempDir()
	full := map[string]string{"greedy": `scope = ["full"]`, "modest": `scope = ["full"]`}
	srv, as := newTokenServer(t, server.Options{}, full)
	server.LimitHandles(srv, limit)
	file := putFile(t, dir+"/f", "text")
	open := func(c *caller, id, path string) *protocol.Error {
		return c.call("fs/open", params{"handleId": id, "path": path}).Error
	}
	greedy := []*caller{newCaller(t, as("greedy"), ""), newCaller(t, as("greedy"), "")}
	for i := range 2 * limit {
		if open(greedy[0], fmt.Sprint(i), dir+"/none") == nil {
			t.Fatal("a file that does not exist was opened")
		}
	}
	takes(t, limit, most, func(i int) *protocol.Error { return open(greedy[i%2], fmt.Sprint(i), file) })
	modest := newCaller(t, as("modest"), "")
	for i := range limit - most {
		if err := open(modest, fmt.Sprint(i), file); err != nil {
			t.Errorf("another principal: %v", err)
		}
	}
	for _, id := range []string{"0", "2"} {
		greedy[0].result("fs/close", params{"handleId": id}, new(struct{}))
	}
	if err := open(greedy[1], "again", file); err != nil {
		t.Errorf("after two were closed: %v", err)
	}
	for _, c := range append(greedy, modest) {
		c.Drop()
	}
	last := newCaller(t, as("greedy"), "")
	next := 0
	testkit.WaitFor(t, testkit.Patience, func() error { // until the ends were noticed
		for ; next < most; next++ {
			if err := open(last, fmt.Sprint(next), file); err != nil {
				return err
			}
		}
		return nil
	})
}
