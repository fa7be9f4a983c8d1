// Package pages types the commands of the README and of docs/ as a reader would: one after
// another, word for word, in a home directory that is empty at first, with a real sshd for
// the other machine and a real Codex. Stand-ins take the place of docker, podman and
// kubectl, and of the model that Codex asks. What cannot be run here has its reason in the
// table of the test.
package pages
