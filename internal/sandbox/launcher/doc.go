// Package launcher is this program as what stands between a server and a
// confined command: it is started in new namespaces, makes its view of the files,
// gives up every right, and starts the command or becomes it.
//
// The program becomes one when its only argument is [Argument]. A launcher must
// be quick and small. So it is this package's init function, which never
// returns, and the package imports little (see package keeper). It takes nothing
// from its environment, which is empty: what to do comes through [SpecFD], and
// what came of it goes through [ControlFD].
package launcher
