module execserver/examples/embedding

go 1.26.0

require execserver v0.0.0

require (
	github.com/klauspost/compress v1.20.3 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.43.0 // indirect
)

require (
	github.com/BurntSushi/toml v1.6.0 // indirect
	github.com/fsnotify/fsnotify v1.10.1 // indirect
	github.com/golang-jwt/jwt/v5 v5.3.1 // indirect
	github.com/segmentio/asm v1.1.3 // indirect
	golang.org/x/crypto v0.58.0
	golang.org/x/sys v0.49.0 // indirect
)

replace execserver => ../..
