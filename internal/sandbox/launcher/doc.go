// Package launcher runs this program between a server and a confined command. It starts
// in new namespaces, builds its view of the files, gives up every right, and starts the
// command or executes it in its own place.
//
// The program becomes a launcher in [Run], at the top of its main function, when its only
// argument is [Argument] and a server has handed it the two descriptors. A launcher must
// be quick and small, so the package imports little. Its environment is empty: it reads
// its work from [SpecFD] and reports through [ControlFD].
package launcher
