module execserver/test/metrics

go 1.26.0

require execserver v0.0.0

require (
	go.uber.org/goleak v1.3.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
)

require (
	github.com/grafana/grafana-foundation-sdk/go v0.0.22
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/segmentio/asm v1.1.3 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace execserver => ../..
