// Package doors attacks the listeners of the server: as another user, as a confined
// command, as a web page, and with floods of connections.
package doors
