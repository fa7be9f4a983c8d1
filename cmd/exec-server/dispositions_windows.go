package main

// catchIgnored does nothing: processes inherit no dispositions of signals here.
func catchIgnored() {}
