// Command slowlink makes a port of this machine a slow way to another port, for
// measurements by hand:
//
//	go run ./test/slowlink -to 127.0.0.1:8765 -listen 127.0.0.1:9765
//	exec-server run -t --url ws://127.0.0.1:9765 -- bash
//	go run ./test/slowlink -to box:22 -listen 127.0.0.1:2222 &
//	ssh -p 2222 localhost
//
// It counts the bytes of both directions and prints them when it is interrupted.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"execserver/internal/testkit/slowlink"
)

func main() {
	to := flag.String("to", "", "pass connections on to this `HOST:PORT`")
	listen := flag.String("listen", "127.0.0.1:0", "listen on this `address`")
	trip := flag.Duration("round-trip", 50*time.Millisecond, "time of a round trip")
	rate := flag.Float64("rate", 20, "Mbit/s in each direction; 0 is unlimited")
	flag.Parse()
	if *to == "" || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	l, err := slowlink.Listen(*listen, *to, slowlink.Options{BitsPerSecond: int64(*rate * 1e6), RoundTrip: *trip})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	<-interrupted
	l.Close()
	up, down := l.Bytes()
	fmt.Printf("%d bytes to %s, %d bytes from it\n", up, *to, down)
}
