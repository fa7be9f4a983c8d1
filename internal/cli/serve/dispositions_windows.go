package serve

// catchIgnored does nothing: processes on Windows inherit no signal dispositions.
func catchIgnored() {}
